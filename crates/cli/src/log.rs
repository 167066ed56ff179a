//! Warnings beside a command's work, as lines on standard error.
//!
//! The engine reports problems it tolerates as `tracing` events: an unusable cache, memory on the
//! wrong nodes, a full disk. Warnings and errors are shown; `info` and below serve measurements. A
//! line is `terrace: warning: the message (field value, ...)`. Events may quote foreign text such
//! as file names. It is escaped, line feeds included, so one event is one line.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Shows warnings and errors from now on.
pub fn show_warnings() {
    // Fails if another subscriber is installed; then that one shows events.
    let _ = tracing::subscriber::set_global_default(Lines);
}

/// Prints a line per warning or error.
struct Lines;

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut said = Said::default();
        event.record(&mut said);
        // If standard error is closed, the message is lost.
        let _ = writeln!(std::io::stderr().lock(), "{}", said.line(*event.metadata().level()));
    }

    // Lines do not show spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Message and fields of an event.
#[derive(Default)]
struct Said {
    message: String,
    fields: String,
}

impl Said {
    fn line(&self, level: Level) -> String {
        let kind = if level == Level::ERROR { "error" } else { "warning" };
        let Said { message, fields } = self;
        let line = match fields.is_empty() {
            true => format!("terrace: {kind}: {message}"),
            false => format!("terrace: {kind}: {message} ({fields})"),
        };
        terrace_common::escape::text(&line).replace('\n', "\\n")
    }

    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let written = match field.name() {
            "message" => self.message.write_fmt(value),
            name => {
                let comma = if self.fields.is_empty() { "" } else { ", " };
                write!(self.fields, "{comma}{name} {value}")
            }
        };
        written.expect("a string takes all text");
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the last event's line.
    struct Kept(std::sync::Arc<std::sync::Mutex<String>>);

    impl Subscriber for Kept {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            Lines.enabled(metadata)
        }
        fn event(&self, event: &Event<'_>) {
            let mut said = Said::default();
            event.record(&mut said);
            *self.0.lock().unwrap() = said.line(*event.metadata().level());
        }
        fn new_span(&self, span: &Attributes<'_>) -> Id {
            Lines.new_span(span)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn an_event_is_one_printable_line_and_what_is_no_warning_none() {
        let kept = Kept(Default::default());
        let line = std::sync::Arc::clone(&kept.0);
        tracing::subscriber::with_default(kept, || {
            tracing::warn!(file = "a\x1b[31m\nterrace: error: forged", pages = 3, "not used");
            let told = line.lock().unwrap().clone();
            let shown = "terrace: warning: not used (file a\\u{1b}[31m\\nterrace: error: forged, pages 3)";
            assert_eq!(told, shown);
            tracing::error!(error = %"no \u{202e}", "failed");
            assert_eq!(*line.lock().unwrap(), "terrace: error: failed (error no \\u{202e})");
            line.lock().unwrap().clear();
            tracing::info!("measured");
            assert_eq!(*line.lock().unwrap(), "");
        });
    }
}
