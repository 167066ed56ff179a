//! Formats counts; [`terrace_io::units`] formats sizes, and parses sizes and durations.

pub use terrace_io::units::{duration, exact_size, show_size, size};

/// A count with grouped thousands.
pub fn show_count(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A count with the word for one thing, or its plural: `1 entry`, `2,000 entries`.
pub fn counted(count: u64, one: &str) -> String {
    let shown = show_count(count);
    match (count, one.strip_suffix('y')) {
        (1, _) => format!("{shown} {one}"),
        (_, Some(stem)) => format!("{shown} {stem}ies"),
        (_, None) if one.ends_with('s') => format!("{shown} {one}es"),
        (_, None) => format!("{shown} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_singular() {
        assert_eq!(counted(1, "entry"), "1 entry");
        assert_eq!(counted(0, "entry"), "0 entries");
        assert_eq!(counted(2_000, "page"), "2,000 pages");
        assert_eq!(counted(2, "block access"), "2 block accesses");
    }

    #[test]
    fn counts_have_grouped_thousands() {
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(12), "12");
    }
}
