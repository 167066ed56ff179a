//! Statistics: one struct for each part, shared by library, JSON and Prometheus.
//!
//! [`stats!`](crate::stats!) declares the struct. Each field says how Prometheus shows it, so a new
//! number is declared once. JSON comes from `serde`, which the struct derives.
//!
//! ```
//! use terrace_io::stats::{self, Family, Text};
//!
//! const READS: Family = Family::counter("disk_reads_total", "Blocks read, by place.").by("found");
//!
//! terrace_io::stats! {
//!     /// Statistics of a disk.
//!     #[derive(Clone, Debug, Default, PartialEq)]
//!     pub struct DiskStats {
//!         /// Size in bytes.
//!         bytes: u64 => gauge "disk_bytes" "Size of the disk.",
//!         /// Blocks found in the cache.
//!         hits: u64 => READS "cache",
//!         /// Other blocks.
//!         misses: u64 => READS "disk",
//!     }
//! }
//!
//! let now = DiskStats { bytes: 512, hits: 3, misses: 1 };
//! let text = Text::of(&now);
//! assert!(text.contains("disk_reads_total{found=\"cache\"} 3\n"));
//! let since = stats::since(&now, &DiskStats { hits: 2, ..now.clone() });
//! assert_eq!(since, DiskStats { bytes: 512, hits: 1, misses: 0 });
//! ```

use std::fmt::{Display, Write};

mod histogram;

pub use histogram::{Bucket, Histogram, Latency};

/// How the values of a [`Family`] change.
///
/// ```
/// use terrace_io::stats::{Family, Kind};
///
/// assert_eq!(Family::gauge("frames", "Frames.").kind, Kind::Gauge);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises.
    Counter,
    /// A present value.
    Gauge,
    /// A distribution.
    Histogram,
}

/// A metric of Prometheus: samples that differ in one label at most.
///
/// ```
/// use terrace_io::stats::Family;
///
/// const READS: Family = Family::counter("reads_total", "Reads, by place.").by("found");
/// assert_eq!((READS.name, READS.label), ("reads_total", "found"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of the metric.
    pub name: &'static str,
    /// How it changes.
    pub kind: Kind,
    /// Its meaning.
    pub help: &'static str,
    /// Name of the label by which the samples differ; empty for none.
    pub label: &'static str,
}

impl Family {
    /// A metric that only rises. Its name ends with `_total`.
    pub const fn counter(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: Kind::Counter, help, label: "" }
    }

    /// A metric of present values.
    pub const fn gauge(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: Kind::Gauge, help, label: "" }
    }

    /// A distribution.
    pub const fn histogram(name: &'static str, help: &'static str) -> Family {
        Family { name, kind: Kind::Histogram, help, label: "" }
    }

    /// The same metric with a label.
    pub const fn by(self, label: &'static str) -> Family {
        Family { label, ..self }
    }
}

/// The type of a field of statistics: a number, a text, or further statistics.
///
/// ```
/// use terrace_io::stats::{Family, Field};
///
/// let reads = Family::counter("reads_total", "Reads.");
/// assert_eq!(7u64.since(&5, &reads), 2);
/// ```
pub trait Field {
    /// Adds its samples of `family` to `text`. Statistics have families of their own.
    fn show(&self, family: &Family, label: &str, text: &mut Text);

    /// Adds the samples of an optional field. By default nothing if it is absent.
    fn show_option(field: Option<&Self>, family: &Family, label: &str, text: &mut Text)
    where
        Self: Sized,
    {
        if let Some(field) = field {
            field.show(family, label, text);
        }
    }

    /// The value since `earlier` for a counter; else the present value.
    #[must_use]
    fn since(&self, earlier: &Self, family: &Family) -> Self;
}

/// Counters of statistics since `earlier`; present values as they are.
#[must_use]
pub fn since<T: Field>(now: &T, earlier: &T) -> T {
    now.since(earlier, &Family::gauge("", ""))
}

impl Field for u64 {
    fn show(&self, family: &Family, label: &str, text: &mut Text) {
        text.sample(family, label, self);
    }

    fn since(&self, earlier: &Self, family: &Family) -> Self {
        match family.kind {
            Kind::Counter => self.saturating_sub(*earlier),
            Kind::Gauge | Kind::Histogram => *self,
        }
    }
}

/// Implements [`Field`] for a type whose values are present ones.
///
/// ```
/// use terrace_io::stats::{Family, Text};
///
/// struct Share(f64);
/// terrace_io::present!(Share, |share, family, label, text| text.sample(family, label, share.0));
/// # impl Clone for Share { fn clone(&self) -> Self { Share(self.0) } }
/// ```
#[macro_export]
macro_rules! present {
    ($type:ty, |$field:ident, $family:ident, $label:ident, $text:ident| $show:expr) => {
        impl $crate::stats::Field for $type {
            fn show(&self, $family: &$crate::stats::Family, $label: &str, $text: &mut $crate::stats::Text) {
                let $field = self;
                $show;
            }

            fn since(&self, _: &Self, _: &$crate::stats::Family) -> Self {
                self.clone()
            }
        }
    };
}

present!(u32, |number, family, label, text| text.sample(family, label, number));
present!(bool, |is_so, family, label, text| text.sample(family, label, u8::from(*is_so)));

/// A text is a label, with the value 1. An optional one is 1 or 0, because it may be long.
impl Field for String {
    fn show(&self, family: &Family, _: &str, text: &mut Text) {
        text.sample(family, self, 1);
    }

    fn show_option(field: Option<&Self>, family: &Family, label: &str, text: &mut Text) {
        text.sample(family, label, u8::from(field.is_some()));
    }

    fn since(&self, _: &Self, _: &Family) -> Self {
        self.clone()
    }
}

impl<T: Field + Clone> Field for Option<T> {
    fn show(&self, family: &Family, label: &str, text: &mut Text) {
        T::show_option(self.as_ref(), family, label, text);
    }

    fn since(&self, earlier: &Self, family: &Family) -> Self {
        match (self, earlier) {
            (Some(now), Some(earlier)) => Some(now.since(earlier, family)),
            (now, _) => now.clone(),
        }
    }
}

/// Rows, which a field of theirs names.
impl<T: Field + Clone> Field for Vec<T> {
    fn show(&self, family: &Family, label: &str, text: &mut Text) {
        self.iter().for_each(|row| row.show(family, label, text));
        text.row = None;
    }

    fn since(&self, _: &Self, _: &Family) -> Self {
        self.clone()
    }
}

/// Text for Prometheus (version 0.0.4), by family in the order of their first samples.
///
/// ```
/// use terrace_io::stats::{Family, Text};
///
/// let mut text = Text::default();
/// text.sample(&Family::gauge("frames", "Frames.").by("tier"), "dram", 7);
/// assert_eq!(text.finish(), "# HELP frames Frames.\n# TYPE frames gauge\nframes{tier=\"dram\"} 7\n");
/// ```
#[derive(Debug, Default)]
pub struct Text {
    families: Vec<(&'static str, String)>,
    /// Label of the row at hand.
    row: Option<(&'static str, String)>,
}

impl Text {
    /// The text for `stats`.
    pub fn of(stats: &impl Field) -> String {
        let mut text = Text::default();
        text.add(stats);
        text.finish()
    }

    /// Adds `stats`, whose fields have their own families.
    pub fn add(&mut self, stats: &impl Field) {
        stats.show(&Family::gauge("", ""), "", self);
    }

    /// Names the row of the samples that follow.
    pub fn row(&mut self, label: &'static str, value: impl Display) {
        self.row = Some((label, value.to_string()));
    }

    /// Adds a sample.
    pub fn sample(&mut self, family: &Family, label: &str, value: impl Display) {
        let own = (!family.label.is_empty()).then_some((family.label, label));
        let row = self.row.take();
        let labels = row.iter().map(|(name, value)| (*name, value.as_str())).chain(own);
        let lines = self.lines(family);
        lines.push_str(family.name);
        let mut before = '{';
        for (name, value) in labels {
            lines.push(before);
            before = ',';
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            _ = write!(lines, "{name}=\"{value}\"");
        }
        if before == ',' {
            lines.push('}');
        }
        _ = writeln!(lines, " {value}");
        self.row = row;
    }

    /// The lines of `family`, for samples that are not single numbers.
    pub fn lines(&mut self, family: &Family) -> &mut String {
        let Family { name, kind, help, .. } = family;
        let at = self.families.iter().position(|(known, _)| known == name);
        let at = at.unwrap_or_else(|| {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            self.families.push((name, format!("# HELP {name} {help}\n# TYPE {name} {kind}\n")));
            self.families.len() - 1
        });
        &mut self.families[at].1
    }

    /// All lines.
    pub fn finish(self) -> String {
        self.families.into_iter().map(|(_, lines)| lines).collect()
    }
}

/// Declares the statistics of a part ([`stats`](mod@crate::stats)).
///
/// After its type a field has one of these:
///
/// - `=> gauge "name" "help"`, or `counter` or `histogram`: a metric of its own.
/// - `=> FAMILY "value"`: a sample of a [`Family`](crate::stats::Family) with this label.
/// - `as "label"`: the label of the row, for statistics in a `Vec`.
/// - nothing: the field is statistics.
///
/// With `counted in Counters` after the name, fields that end with `[Counter]` are also fields of
/// `Counters`, of that type. Its method `stats` gets their values.
#[macro_export]
macro_rules! stats {
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident counted in $counters:ident {
            $(
                $(#[$doc:meta])*
                $field:ident: $type:ty
                    $(=> $family:ident $($text:literal)*)? $(as $row:literal)? $([$counter:ty])?,
            )*
        }
    ) => {
        $crate::stats! {
            $(#[$about])*
            $vis struct $name {
                $($(#[$doc])* $field: $type $(=> $family $($text)*)? $(as $row)?,)*
            }
        }

        #[doc = concat!("Counters of [`", stringify!($name), "`].")]
        #[derive(Debug, Default)]
        pub(super) struct $counters {
            $($(pub $field: $counter,)?)*
        }

        impl $counters {
            /// Their values; the other fields are empty.
            pub fn stats(&self) -> $name {
                let mut stats = $name::default();
                $($($crate::stats!(@ignore $counter); stats.$field = self.$field.get();)?)*
                stats
            }
        }
    };
    (
        $(#[$about:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[$doc:meta])*
                $field:ident: $type:ty $(=> $family:ident $($text:literal)*)? $(as $row:literal)?,
            )*
        }
    ) => {
        $(#[$about])*
        $vis struct $name {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl $crate::stats::Field for $name {
            fn show(&self, _: &$crate::stats::Family, _: &str, text: &mut $crate::stats::Text) {
                $($crate::stats!(@show self.$field, text $(, $row)? $(=> $family $($text)*)?);)*
            }

            fn since(&self, earlier: &Self, _: &$crate::stats::Family) -> Self {
                $name {
                    $($field: $crate::stats::Field::since(
                        &self.$field,
                        &earlier.$field,
                        &$crate::stats!(@family $($family $($text)*)?),
                    ),)*
                }
            }
        }
    };
    (@show $value:expr, $to:ident, $row:literal) => { $to.row($row, &$value) };
    (@show $value:expr, $to:ident $(=> $family:ident $($text:literal)*)?) => {
        $crate::stats::Field::show(
            &$value,
            &$crate::stats!(@family $($family $($text)*)?),
            $crate::stats!(@label $($family $($text)*)?),
            $to,
        )
    };
    (@ignore $counter:ty) => {};
    (@family) => { $crate::stats::Family::gauge("", "") };
    (@family gauge $name:literal $help:literal) => { $crate::stats::Family::gauge($name, $help) };
    (@family counter $name:literal $help:literal) => { $crate::stats::Family::counter($name, $help) };
    (@family histogram $name:literal $help:literal) => { $crate::stats::Family::histogram($name, $help) };
    (@family $family:ident $($label:literal)?) => { $family };
    (@label) => { "" };
    (@label $family:ident) => { "" };
    (@label $family:ident $label:literal) => { $label };
    (@label $family:ident $name:literal $help:literal) => { "" };
}
