//! Formats sizes, durations and counts; [`terrace_io::units`] parses them.

pub use terrace_io::units::{duration, size};

/// A size with two or three digits and a binary unit.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    let digits = match value {
        v if unit == "B" || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    let number = format!("{value:.digits$}");
    let number = if digits > 0 { number.trim_end_matches('0').trim_end_matches('.') } else { &number };
    format!("{number} {unit}")
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_sizes_and_counts() {
        assert_eq!(show_size(0), "0 B");
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(64 << 20), "64 MiB");
        assert_eq!(show_size(100 << 20), "100 MiB");
        assert_eq!(show_count(1_234_567), "1,234,567");
        assert_eq!(show_count(12), "12");
    }
}
