//! Sizes and durations in text: `64MiB`, `1.5GiB`, `500ms`, `2m`.
//!
//! Sizes take `B KiB MiB GiB TiB`, durations `ms s m`. A bare number is bytes, or seconds. Decimal
//! units (`MB`) are refused with a hint, since a budget off by 7 % is worse than an error. All
//! sizes in command lines, URIs and environment variables are parsed here.

use std::time::Duration;

/// Parses a size in bytes.
///
/// # Errors
/// A sentence with the reason.
///
/// ```
/// assert_eq!(terrace_io::units::size("1.5KiB"), Ok(1536));
/// assert!(terrace_io::units::size("64MB").unwrap_err().contains("MiB"));
/// ```
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text, "64MiB")?;
    let scale = match unit {
        "" | "B" => 1u64,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        other => {
            let known = ["B", "KiB", "MiB", "GiB", "TiB"];
            let hint = match other.to_ascii_lowercase().as_str() {
                "k" | "kb" | "kib" => "; did you mean KiB?",
                "m" | "mb" | "mib" => "; did you mean MiB?",
                "g" | "gb" | "gib" => "; did you mean GiB?",
                "t" | "tb" | "tib" => "; did you mean TiB?",
                _ => "",
            };
            return Err(format!("{other:?} is not a unit of size, use one of {}{hint}", known.join(", ")));
        }
    };
    scaled(number, scale)
        .ok_or_else(|| format!("{text} does not come to a whole number of bytes below 16 EiB"))
}

/// A size with two or three digits and a binary unit.
///
/// ```
/// assert_eq!(terrace_io::units::show_size(1536), "1.5 KiB");
/// ```
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

/// A size without rounding, in the largest unit with a whole number.
///
/// ```
/// assert_eq!(terrace_io::units::exact_size(3 << 29), "1536MiB");
/// ```
pub fn exact_size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    let (shift, unit) = unit.unwrap_or((0, "B"));
    format!("{}{unit}", bytes >> shift)
}

/// Parses a duration.
///
/// # Errors
/// A sentence with the reason.
///
/// ```
/// assert_eq!(terrace_io::units::duration("500ms").unwrap().as_millis(), 500);
/// ```
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text, "500ms")?;
    let scale = match unit {
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        other => return Err(format!("{other:?} is not a unit of time, use one of ms, s, m")),
    };
    let nanoseconds =
        scaled(number, scale).ok_or_else(|| format!("{text} is too long or too fine a time"))?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// The number of `text` and its unit; an error gives `example`.
fn split<'a>(text: &'a str, example: &str) -> Result<(&'a str, &'a str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    match text.split_at(end) {
        (number, _) if number.matches('.').count() > 1 => {
            Err(format!("{number} is not a number; write for example {example}"))
        }
        ("", _) => Err(format!("{text:?} does not begin with a number; write for example {example}")),
        (number, unit) => Ok((number, unit.trim_start())),
    }
}

/// `number * scale` for a fractional `number`, rounded down to the smallest unit. A fraction of the
/// smallest unit itself is refused.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if number.ends_with('.') || whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let parts = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale);
    let power = 10u128.pow(fraction.len() as u32);
    if scale == 1 && !parts.is_multiple_of(power) {
        return None;
    }
    whole.checked_add(u64::try_from(parts / power).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("4096B"), Ok(4096));
        assert_eq!(size("4KiB"), Ok(4096));
        assert_eq!(size("64 MiB"), Ok(64 << 20));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("1.5TiB"), Ok(3 << 39));
        assert!(size("2TB").unwrap_err().contains("did you mean TiB?"));
        assert!(size("64MB").unwrap_err().contains("MiB"));
        assert!(size("MiB").unwrap_err().contains("number"));
        assert!(size("-1").is_err());
        assert!(size("1.5B").is_err());
        assert_eq!(size("1.5.2KiB"), Err("1.5.2 is not a number; write for example 64MiB".to_owned()));
        assert_eq!(duration("1..2"), Err("1..2 is not a number; write for example 500ms".to_owned()));
        assert_eq!(
            size("-3"),
            Err("\"-3\" does not begin with a number; write for example 64MiB".to_owned())
        );
        assert!(size("99999999999999999999").is_err());
        assert!(size("17179869184GiB").is_err());
        assert!(size("16777216TiB").is_err());
    }

    #[test]
    fn shown_sizes() {
        assert_eq!(show_size(0), "0 B");
        assert_eq!(show_size(1536), "1.5 KiB");
        assert_eq!(show_size(64 << 20), "64 MiB");
        assert_eq!(show_size(100 << 20), "100 MiB");
        assert_eq!(show_size(3 << 39), "1.5 TiB");
    }

    #[test]
    fn durations() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert!(duration("2h").unwrap_err().contains("ms, s, m"));
        assert!(duration("").is_err());
    }
}
