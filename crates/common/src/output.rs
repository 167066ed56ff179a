//! Standard output of the commands.

use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::io::Write;

use serde::Serialize;

use crate::failure::{Failure, Outcome};

/// Writes the JSON object of `--json`.
pub fn print_json(output: &mut dyn Write, object: &impl Serialize) -> Outcome {
    let mut text = serde_json::to_string(object).map_err(|error| Failure::Work(error.to_string()))?;
    text.push('\n');
    print(output, format_args!("{text}"))
}

/// Writes to standard output.
pub fn print(output: &mut dyn Write, text: Arguments<'_>) -> Outcome {
    output.write_fmt(text).and_then(|()| output.flush()).map_err(Failure::output)
}

/// Writes the settings that an engine reports, if any.
pub fn print_settings(output: &mut dyn Write, settings: &BTreeMap<&'static str, String>) -> Outcome {
    if settings.is_empty() {
        return Ok(());
    }
    let told: Vec<_> = settings.iter().map(|(name, value)| format!("{name} {value}")).collect();
    print(output, format_args!("settings: {}\n", told.join(", ")))
}
