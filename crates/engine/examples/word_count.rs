//! Counts the words of a text in a table, and prints the most frequent ones.
//!
//! `cargo run --release -p terrace --example word_count -- FILE`; without a file, of the licence.
//!
//! Shows tables, an atomic read-modify-write of one key, and a scan in key order.

use std::error::Error;

use terrace::Db;

fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(path)?,
        None => include_str!("../../../LICENSE-MIT").to_owned(),
    };
    let home = tempfile::tempdir()?;
    let db = Db::builder().dram(16 << 20).open(home.path().join("words.db"))?;
    let counts = db.create_table("counts")?;

    for word in text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        counts.update(word.to_lowercase(), |old| Some((number(old) + 1).to_be_bytes().to_vec()))?;
    }

    let mut frequent = Vec::new();
    for entry in counts.iter() {
        let (word, count) = entry?;
        frequent.push((number(Some(&count)), String::from_utf8(word)?));
    }
    frequent.sort_by(|a, b| b.cmp(a));
    for (count, word) in frequent.iter().take(5) {
        println!("{count:5} {word}");
    }
    println!("{} different words", counts.len()?);
    db.close()?;
    Ok(())
}

/// The number that a value holds; 0 if there is none.
fn number(value: Option<&[u8]>) -> u64 {
    value.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_be_bytes)
}
