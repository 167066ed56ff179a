//! The designs that HyMem compares (section 5), as presets of `terrace bench` and of the claims.

use std::fmt::Display;

use clap::ValueEnum;
use terrace::migration::{Choice, Policy};
use terrace::{Middle, MiddleKind, Replacement};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::tiers::{TierArgs, is_middle_in_environment};
use terrace_common::units::show_size;

use crate::peers;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 16 << 10;
/// One CLOCK per tier.
pub const REPLACEMENT: Replacement = Replacement::ClockPaper;
const RAW_FRAMES: &str = "raw-frames";

/// An architecture. Each has pages of 16 KiB.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// All data in DRAM, and nodes name frames: the engine raw-frames
    MainMemory,
    /// DRAM over --store
    Ssd,
    /// DRAM over --middle, which holds all data and is read page by page
    Nvm,
    /// DRAM, --middle and --store, with an admission queue, lines of 64 bytes and mini pages
    ThreeTiers,
    /// --middle holds all data, used in place; each changed line is flushed and fenced
    Direct,
}

impl Design {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Which pages move, if there is a middle tier.
    pub fn choice(self) -> Option<Choice> {
        match self {
            Design::MainMemory | Design::Ssd => None,
            Design::Nvm => Some(Choice::Eager),
            Design::ThreeTiers => Some(Choice::HyMem),
            Design::Direct => {
                let in_place = Policy::new(0.0, 0.0, 1.0, 1.0).expect("they are probabilities");
                Some(Choice::Fixed(in_place))
            }
        }
    }

    /// Bytes of the lines of partial pages, 0 for whole pages.
    pub fn lines(self) -> u64 {
        if self == Design::ThreeTiers { 64 } else { 0 }
    }

    /// Sets the design's flags, and returns them. `has_store`: there are files.
    ///
    /// # Errors
    /// [`Failure::Usage`] if a given flag contradicts them, or one is missing.
    pub fn apply(self, engine: &mut String, tiers: &mut TierArgs, has_store: bool) -> Outcome<String> {
        let mut preset = Preset { design: self, set: Vec::new() };
        preset.check(engine, tiers, has_store)?;
        preset.set(&mut tiers.layout.page_size, PAGE_BYTES, "--page-size", show_size)?;
        if self == Design::MainMemory {
            *engine = peers::parse(RAW_FRAMES).map_err(|error| preset.refuse(error))?;
            preset.set.push(format!("--engine {RAW_FRAMES}"));
            return Ok(preset.told());
        }
        preset.set(&mut tiers.replacement, REPLACEMENT, "--replacement", shown)?;
        // The papers have none.
        preset.set(&mut tiers.record_cache, 0, "--record-cache", shown)?;
        if let Some(choice) = self.choice() {
            let lines = |bytes| if bytes == 0 { "off".to_owned() } else { shown(bytes) };
            preset.set(&mut tiers.migration.policy, choice, "--policy", shown)?;
            preset.set(&mut tiers.migration.lines, self.lines(), "--lines", lines)?;
        }
        if self == Design::ThreeTiers {
            tiers.migration.mini_pages = true;
            preset.set.push("--mini-pages".to_owned());
        }
        if self == Design::Direct {
            let middle = tiers.middle.middle.take().expect("checked above");
            let MiddleKind::Simulated(profile) = middle.kind() else {
                return Err(
                    preset.refuse(format!("only simulated memory can charge that, {} cannot", middle))
                );
            };
            let (line, fence) = (profile.write_back_ns(), profile.fence_ns());
            let profile = profile.clone().with_write_back().with_counted_lines(true).with_persistent(false);
            tiers.middle.middle = Some(Middle::new(MiddleKind::Simulated(profile), middle.bytes()));
            preset.set.push(format!("{line} ns to write back and {fence} ns to fence each changed line"));
        }
        Ok(preset.told())
    }
}

fn shown(value: impl Display) -> String {
    value.to_string()
}

/// A design, and what was set for it.
struct Preset {
    design: Design,
    set: Vec<String>,
}

impl Preset {
    fn refuse(&self, why: impl Display) -> Failure {
        Failure::Usage(format!("--design {}: {why}", self.design.name()))
    }

    fn told(&self) -> String {
        format!("{}: {}", self.design.name(), self.set.join(" "))
    }

    /// Sets a flag, unless it is given.
    fn set<T: PartialEq + Copy>(
        &mut self,
        flag: &mut Option<T>,
        value: T,
        name: &str,
        show: impl Fn(T) -> String,
    ) -> Outcome {
        match *flag {
            Some(given) if given != value => {
                let (given, value) = (show(given), show(value));
                Err(self.refuse(format!("it sets {name} {value}; leave out {name} {given}")))
            }
            _ => {
                *flag = Some(value);
                self.set.push(format!("{name} {}", show(value)));
                Ok(())
            }
        }
    }

    /// Checks which tiers and which engine are given.
    fn check(&self, engine: &str, tiers: &TierArgs, has_store: bool) -> Outcome {
        let (store, middle) = match self.design {
            Design::MainMemory => (false, false),
            Design::Ssd => (true, false),
            Design::Nvm | Design::Direct => (false, true),
            Design::ThreeTiers => (true, true),
        };
        for (name, given, wanted) in [
            ("--store", has_store, store),
            ("--middle", tiers.middle.middle.is_some(), middle),
            ("--cache", tiers.cache.cache.is_some(), false),
            ("$TERRACE_MIDDLE", is_middle_in_environment() && !middle, false),
        ] {
            match (given, wanted) {
                (true, false) => return Err(self.refuse(format!("it has no such tier; leave out {name}"))),
                (false, true) => return Err(self.refuse(format!("it needs {name}"))),
                _ => {}
            }
        }
        let engines: &[&str] = match self.design {
            Design::MainMemory => &[peers::TERRACE, RAW_FRAMES],
            _ => &[peers::TERRACE],
        };
        if !engines.contains(&engine) {
            return Err(self.refuse(format!("it is no design of --engine {engine}")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{BenchCommand, Line, YcsbArgs};

    fn apply(flags: &str) -> Outcome<(String, Box<YcsbArgs>)> {
        let line = Line::try_parse_from("line bench ycsb".split(' ').chain(flags.split(' '))).expect(flags);
        let Line::Bench(BenchCommand::Ycsb(mut args)) = line else { unreachable!("that was asked for") };
        let (design, has_store) = (args.design.expect("it is given"), args.store.is_some());
        let set = design.apply(&mut args.engine, &mut args.tiers, has_store)?;
        Ok((set, args))
    }

    #[test]
    fn each_design_says_what_it_sets() {
        let (set, args) = apply("--design ssd --store /x").unwrap();
        assert_eq!(set, "ssd: --page-size 16 KiB --replacement clock-paper --record-cache 0");
        assert_eq!((args.tiers.layout.page_size, args.tiers.replacement), (Some(16384), Some(REPLACEMENT)));
        let (set, args) = apply("--design three-tiers --store /x --middle simulated:optane,8MiB").unwrap();
        assert!(set.ends_with("--policy hymem --lines 64 --mini-pages"), "{set}");
        assert_eq!(args.tiers.migration.lines, Some(64));
        let (set, _) = apply("--design nvm --middle simulated:optane,8MiB").unwrap();
        assert!(set.ends_with("--policy eager --lines off"), "{set}");
    }

    #[test]
    fn direct_charges_flush_and_fence() {
        let (set, args) = apply("--design direct --middle simulated:optane,8MiB").unwrap();
        assert!(set.contains("--policy 0,0,1,1") && set.contains("ns to fence"), "{set}");
        let middle = args.tiers.middle.middle.unwrap();
        let MiddleKind::Simulated(profile) = middle.kind() else { panic!("{middle}") };
        assert!(profile.counts_lines() && !profile.is_persistent());
        assert_eq!(middle.bytes(), 8 << 20);
    }

    #[test]
    fn main_memory_is_the_engine_raw_frames() {
        match apply("--design main-memory") {
            Ok((set, args)) => {
                assert_eq!(args.engine, RAW_FRAMES);
                assert!(set.ends_with("--engine raw-frames"), "{set}");
            }
            Err(refused) => assert!(refused.to_string().contains("--features raw-frames"), "{refused}"),
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for (flags, why) in [
            ("--design ssd", "it needs --store"),
            ("--design ssd --store /x --middle simulated:dram,8MiB", "leave out --middle"),
            ("--design ssd --store /x --cache simulated:dram,8MiB", "leave out --cache"),
            ("--design ssd --store /x --replacement mark", "sets --replacement clock-paper"),
            ("--design ssd --store /x --page-size 4KiB", "leave out --page-size 4 KiB"),
            ("--design ssd --store /x --engine redb", "--engine redb"),
            ("--design nvm --middle simulated:optane,8MiB --store /x", "leave out --store"),
            ("--design nvm --middle simulated:optane,8MiB --policy lazy", "leave out --policy lazy"),
            (
                "--design three-tiers --store /x --middle simulated:optane,8MiB --lines off",
                "leave out --lines",
            ),
            ("--design direct --middle numa:0,8MiB", "only simulated memory"),
            ("--design main-memory --store /x", "leave out --store"),
        ] {
            let refused = apply(flags).expect_err(flags);
            assert!(matches!(&refused, Failure::Usage(what) if what.contains(why)), "{flags}: {refused}");
        }
    }
}
