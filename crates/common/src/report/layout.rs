//! Widths of texts, their lines, and the positions of a legend's entries.
//!
//! The reader's fonts are unknown, so a width is estimated from the number of characters, as that
//! of a wide font.

/// Parts of a pixel: the drawing library has whole coordinates.
pub const UNIT: i32 = 4;
/// Size of letters.
pub const FONT: i32 = 12 * UNIT;
/// Height of a line of text.
pub const LINE: i32 = 17 * UNIT;
/// Least distance of neighbouring texts.
pub const GAP: i32 = 8 * UNIT;
/// Width of the symbol before a name in the legend.
pub const SYMBOL: i32 = 20 * UNIT;

/// Width of a text.
pub fn width(text: &str) -> i32 {
    // Six tenths of its size for a character: letters of Arial have half of it in the mean.
    text.chars().count() as i32 * FONT * 6 / 10
}

/// The lines of a text that is no wider than `room`. A long word is cut.
pub fn wrapped(text: &str, room: i32) -> Vec<String> {
    let most = (room / width("x")).max(1) as usize;
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(most) {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + piece.len() <= most => {
                    line.push(' ');
                    line.extend(piece);
                }
                _ => lines.push(piece.iter().collect()),
            }
        }
    }
    lines
}

/// An entry of a legend: its left end, its first line, and its text.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub x: i32,
    pub y: i32,
    pub lines: Vec<String>,
}

/// Arranges the names in rows no wider than `room`; also returns the height.
pub fn legend(names: &[String], room: i32) -> (Vec<Entry>, i32) {
    let (mut x, mut y, mut height) = (0, 0, 0);
    let mut entries = Vec::new();
    for name in names {
        let lines = wrapped(name, room - SYMBOL);
        let wide = SYMBOL + lines.iter().map(|line| width(line)).max().unwrap_or(0);
        if x > 0 && x + wide > room {
            (x, y) = (0, height);
        }
        height = height.max(y + LINE * lines.len().max(1) as i32);
        entries.push(Entry { x, y, lines });
        x += wide + 2 * GAP;
    }
    (entries, height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_wrapped_at_blanks_and_long_words_are_cut() {
        let room = width("ten letter");
        assert_eq!(wrapped("one two three, four", room), ["one two", "three,", "four"]);
        assert_eq!(wrapped("obp-lifetime+lru", room), ["obp-lifeti", "me+lru"]);
        assert!(wrapped(" ", room).is_empty());
    }

    #[test]
    fn a_legend_begins_a_row_where_the_last_is_full() {
        let names = ["reads", "updates", "a name of two lines"].map(str::to_owned);
        let (entries, height) = legend(&names, 2 * SYMBOL + 2 * GAP + width("readsupdates"));
        let at: Vec<(i32, i32)> = entries.iter().map(|entry| (entry.x, entry.y)).collect();
        assert_eq!(at, [(0, 0), (SYMBOL + width("reads") + 2 * GAP, 0), (0, LINE)]);
        assert_eq!((entries[2].lines.len(), height), (2, 3 * LINE));
    }
}
