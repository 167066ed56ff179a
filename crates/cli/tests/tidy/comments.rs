//! Comments and identifiers of a Rust file, by a lexer: the parser drops comments.

use std::collections::BTreeMap;

/// A line of a comment.
#[derive(Debug, PartialEq, Eq)]
pub struct Comment {
    /// Line of the file, from 1.
    pub line: usize,
    /// Text without the marker and the blank after it.
    pub text: String,
    /// Whether nothing but the comment is on the line.
    pub is_alone: bool,
    /// Column behind its last character.
    pub end: usize,
}

/// What a lexer finds.
#[derive(Default)]
pub struct Lexed {
    pub comments: Vec<Comment>,
    /// Each identifier, with the first line it is on.
    pub identifiers: BTreeMap<String, usize>,
    /// Lines with code on them.
    pub code_lines: usize,
}

struct Lexer<'t> {
    letters: Vec<char>,
    lines: Vec<&'t str>,
    at: usize,
    line: usize,
    last_code_line: usize,
    lexed: Lexed,
}

pub fn lex(text: &str) -> Lexed {
    let mut lexer = Lexer {
        letters: text.chars().collect(),
        lines: text.lines().collect(),
        at: 0,
        line: 1,
        last_code_line: 0,
        lexed: Lexed::default(),
    };
    while lexer.at < lexer.letters.len() {
        lexer.step();
    }
    lexer.lexed
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> char {
        self.letters.get(self.at + ahead).copied().unwrap_or('\0')
    }

    fn code(&mut self) {
        if self.last_code_line != self.line {
            self.last_code_line = self.line;
            self.lexed.code_lines += 1;
        }
    }

    fn advance(&mut self, count: usize) {
        for _ in 0..count {
            self.line += usize::from(self.peek(0) == '\n');
            self.at += 1;
        }
    }

    fn step(&mut self) {
        match (self.peek(0), self.peek(1)) {
            ('/', '/') => self.line_comment(),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.string(),
            ('\'', _) => self.quote(),
            (letter, _) if letter.is_alphabetic() || letter == '_' => self.word(),
            (letter, _) => {
                if !letter.is_whitespace() {
                    self.code();
                }
                // A number may end in letters, which are no identifier.
                if letter.is_ascii_digit() {
                    while self.peek(1).is_alphanumeric() || self.peek(1) == '_' {
                        self.advance(1);
                    }
                }
                self.advance(1);
            }
        }
    }

    fn comment(&mut self, text: &str) {
        let line = self.lines.get(self.line - 1).copied().unwrap_or_default();
        self.lexed.comments.push(Comment {
            line: self.line,
            text: text.to_owned(),
            is_alone: self.last_code_line != self.line,
            end: line.chars().count(),
        });
    }

    fn line_comment(&mut self) {
        let mut text = String::new();
        while self.at < self.letters.len() && self.peek(0) != '\n' {
            text.push(self.peek(0));
            self.at += 1;
        }
        let text = text.trim_start_matches('/');
        let text = text.strip_prefix('!').unwrap_or(text);
        self.comment(text.strip_prefix(' ').unwrap_or(text));
    }

    fn block_comment(&mut self) {
        let (mut depth, mut text) = (0, String::new());
        while self.at < self.letters.len() {
            match (self.peek(0), self.peek(1)) {
                ('/', '*') => depth += 1,
                ('*', '/') => depth -= 1,
                ('\n', _) => {
                    self.comment(&text);
                    text.clear();
                    self.advance(1);
                    continue;
                }
                (letter, _) => {
                    text.push(letter);
                    self.advance(1);
                    continue;
                }
            }
            self.advance(2);
            if depth == 0 {
                break;
            }
        }
        self.comment(&text);
    }

    fn string(&mut self) {
        self.code();
        self.advance(1);
        while self.at < self.letters.len() && self.peek(0) != '"' {
            self.advance(if self.peek(0) == '\\' { 2 } else { 1 });
            self.code();
        }
        self.advance(1);
    }

    /// A string whose opening quote follows `hashes` number signs.
    fn raw_string(&mut self, hashes: usize) {
        self.code();
        self.advance(hashes + 1);
        while self.at < self.letters.len() {
            self.code();
            if self.peek(0) == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == '#') {
                self.advance(hashes + 1);
                return;
            }
            self.advance(1);
        }
    }

    /// A character, or a lifetime.
    fn quote(&mut self) {
        self.code();
        if self.peek(1) == '\\' {
            self.advance(3);
            while self.at < self.letters.len() && self.peek(0) != '\'' {
                self.advance(1);
            }
            self.advance(1);
        } else if self.peek(2) == '\'' {
            self.advance(3);
        } else {
            self.advance(1);
            while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
                self.advance(1);
            }
        }
    }

    fn word(&mut self) {
        self.code();
        let mut word = String::new();
        while self.peek(0).is_alphanumeric() || self.peek(0) == '_' {
            word.push(self.peek(0));
            self.at += 1;
        }
        let hashes = (0..).take_while(|ahead| self.peek(*ahead) == '#').count();
        if ["r", "br", "cr"].contains(&word.as_str()) && self.peek(hashes) == '"' {
            self.raw_string(hashes);
        } else if word == "r" && hashes == 1 {
            // A raw identifier follows.
            self.advance(1);
        } else if !(["b", "c"].contains(&word.as_str()) && ['"', '\''].contains(&self.peek(0))) {
            self.lexed.identifiers.entry(word).or_insert(self.line);
        }
    }
}

#[test]
fn comments_are_told_from_strings() {
    let text = "//! Head\nlet a = \"// no\"; // yes\nlet r#type = r#\"/* \" no */\"#; let c = '\"';\n\
                /* one /* two */\n  three */ let 'x: b'\\'' = 1u8;\n";
    let lexed = lex(text);
    let found: Vec<_> = lexed.comments.iter().map(|comment| (comment.line, comment.text.as_str())).collect();
    assert_eq!(found, [(1, "Head"), (2, "yes"), (4, " one  two "), (5, "  three ")]);
    let alone: Vec<_> = lexed.comments.iter().map(|comment| comment.is_alone).collect();
    assert_eq!(alone, [true, false, true, true]);
    assert_eq!(lexed.code_lines, 3);
    let names: Vec<_> = lexed.identifiers.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "c", "let", "type"]);
}
