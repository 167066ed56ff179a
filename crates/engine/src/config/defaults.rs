//! Back end, page table, middle tier and protocol of builders that set none.

use std::num::ParseIntError;

use crate::backend::Backend;
use crate::concurrency::Concurrency;
use crate::error::{Error, Result};
use crate::middle::Middle;
use crate::migration::Choice;
use crate::page_table::PageTableKind;

const BACKEND: &str = "TERRACE_BACKEND";
const TABLE: &str = "TERRACE_PAGE_TABLE";
const MIDDLE: &str = "TERRACE_MIDDLE";
const LINES: &str = "TERRACE_LINES";
const CONCURRENCY: &str = "TERRACE_CONCURRENCY";
/// Follows the bytes of a line.
const MINI: &str = ",mini";

/// Values of settings that a builder was not given.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) backend: Backend,
    /// With swips.
    pub(crate) table: (PageTableKind, bool),
    pub(crate) middle: Option<(Middle, Choice)>,
    pub(crate) lines: Option<u64>,
    pub(crate) minis: bool,
    pub(crate) concurrency: Concurrency,
}

impl Default for Defaults {
    #[cfg(not(test))]
    fn default() -> Defaults {
        Defaults {
            backend: Backend::default(),
            table: (PageTableKind::default(), false),
            middle: None,
            lines: None,
            minis: false,
            concurrency: Concurrency::default(),
        }
    }

    /// CI also runs the unit tests over mapped pages and over three tiers.
    #[cfg(test)]
    fn default() -> Defaults {
        Defaults::of_variables(|name| std::env::var(name).ok()).expect("the variables name what there is")
    }
}

impl Defaults {
    /// Reads `TERRACE_BACKEND`, such as `mapped`, `TERRACE_PAGE_TABLE`, such as `hash` or
    /// `hash,swizzle`, `TERRACE_LINES`, in bytes with `,mini` for mini pages,
    /// `TERRACE_CONCURRENCY` and `TERRACE_MIDDLE`.
    ///
    /// The last one has kind, size and an optional policy: `simulated:dram,1MiB,.5,.5,.5,.5`.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid value.
    pub(crate) fn of_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Defaults> {
        let wrong = |name: &str, error: String| Error::Config(format!("{name}: {error}"));
        let backend = variable(BACKEND).map(|name| name.parse().map_err(|error| wrong(BACKEND, error)));
        let middle = variable(MIDDLE).map(|text| tier(&text).map_err(|error| wrong(MIDDLE, error)));
        let lines = variable(LINES)
            .map(|text| lines_of(&text).map_err(|error| wrong(LINES, format!("{text}, bytes: {error}"))));
        let table = variable(TABLE).map(|text| table(&text).map_err(|error| wrong(TABLE, error)));
        let (middle, lines) = (middle.transpose()?, lines.transpose()?);
        let (lines, minis) = lines.map_or((None, false), |(bytes, minis)| (Some(bytes), minis));
        let table = table.transpose()?.unwrap_or_default();
        let concurrency =
            variable(CONCURRENCY).map(|name| name.parse().map_err(|error| wrong(CONCURRENCY, error)));
        let concurrency = concurrency.transpose()?.unwrap_or_default();
        let backend = backend.transpose()?.unwrap_or_default();
        Ok(Defaults { backend, table, middle, lines, minis, concurrency })
    }
}

fn table(text: &str) -> Result<(PageTableKind, bool), String> {
    let name = text.strip_suffix(",swizzle");
    Ok((name.unwrap_or(text).parse()?, name.is_some()))
}

fn tier(text: &str) -> Result<(Middle, Choice), String> {
    let at = text.match_indices(',').nth(1).map_or(text.len(), |(at, _)| at);
    let choice = text.get(at + 1..).map_or(Ok(Choice::default()), str::parse)?;
    Ok((text[..at].parse()?, choice))
}

/// Bytes of a line, and whether there are mini pages.
fn lines_of(text: &str) -> Result<(u64, bool), ParseIntError> {
    let bytes = text.strip_suffix(MINI);
    Ok((bytes.unwrap_or(text).parse()?, bytes.is_some()))
}

#[cfg(test)]
impl Backend {
    /// The back end of this run of the tests.
    pub(crate) fn of_environment() -> Result<Backend> {
        Ok(Defaults::default().backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &'static str, value: &'static str) -> Result<Defaults> {
        Defaults::of_variables(move |asked| (asked == name).then(|| value.to_owned()))
    }

    #[test]
    fn variables_name_back_end_and_tier() {
        assert_eq!(of(BACKEND, "mapped").unwrap().backend, Backend::Mapped);
        assert_eq!(of("TERRACE_OTHER", "mapped").unwrap().backend, Backend::Frames);
        let (middle, choice) = of(MIDDLE, "simulated:dram,1MiB,.5,.5,.5,.5").unwrap().middle.unwrap();
        assert_eq!((middle.bytes(), choice), (1 << 20, ".5,.5,.5,.5".parse().unwrap()));
        assert_eq!(of(MIDDLE, "simulated:dram,1MiB").unwrap().middle.unwrap().1, Choice::default());
        let lines = |value| of(LINES, value).map(|found| (found.lines, found.minis)).unwrap();
        assert_eq!([lines("64"), lines("256,mini")], [(Some(64), false), (Some(256), true)]);
        assert_eq!(of(TABLE, "hash").unwrap().table, (PageTableKind::Hash, false));
        assert_eq!(of(TABLE, "hash,swizzle").unwrap().table, (PageTableKind::Hash, true));
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_variable() {
        for (name, value) in [
            (BACKEND, "neither"),
            (TABLE, "hash,swizzled"),
            (MIDDLE, "simulated:dram"),
            (MIDDLE, "numa:0,1MiB,5"),
            (LINES, "sixty"),
            (LINES, "64,maxi"),
        ] {
            let refused = of(name, value).unwrap_err().to_string();
            assert!(refused.contains(name), "{refused}");
        }
    }
}
