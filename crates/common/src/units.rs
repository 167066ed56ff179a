//! Formats and parses counts; [`terrace_io::units`] formats and parses sizes, and parses durations.

use std::ops::RangeInclusive;

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

/// A parser of an option that takes a whole number in `range`. An end of `u64::MAX` is no limit.
///
/// Its errors are sentences with the reason.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let (least, most) = (*range.start(), *range.end());
        let fitting = text.parse().ok().filter(|number| range.contains(number));
        fitting.and_then(|number| T::try_from(number).ok()).ok_or_else(|| match most {
            u64::MAX => format!("{text} is no whole number of at least {least}"),
            _ => format!("{text} is no whole number from {least} to {most}"),
        })
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
    fn whole_numbers_are_within_their_range() {
        let parse = whole::<u16>(1..=1024);
        assert_eq!((parse("1"), parse("1024")), (Ok(1), Ok(1024)));
        for text in ["0", "1025", "-3", "", "3.5", "three", "99999999999999999999"] {
            assert_eq!(parse(text), Err(format!("{text} is no whole number from 1 to 1024")));
        }
        let parse = whole::<u64>(1..=u64::MAX);
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse("0"), Err("0 is no whole number of at least 1".to_owned()));
    }

    #[test]
    fn counts_have_grouped_thousands() {
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(12), "12");
    }
}
