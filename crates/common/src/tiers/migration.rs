//! Flags of migration between tiers.

use clap::Args;
use terrace::Migrate;
use terrace::migration::{Choice, CleanVictims, Migration};

/// Flags of [`Migration`], and how pages migrate. Default: none set.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq)]
pub struct MigrationArgs {
    /// How pages move between DRAM, the middle tier and the store: adaptive, eager, lazy, hymem,
    /// lazy-cxl, or four probabilities [default: adaptive]
    #[arg(long, value_name = "NAME|DR,DW,NR,NW")]
    pub policy: Option<Choice>,
    /// Pages that the admission queue remembers; the queue replaces the probability NW [default:
    /// half the middle tier's frames with hymem, else no queue]
    #[arg(long, value_name = "PAGES")]
    pub admission_queue: Option<u64>,
    /// Fate of clean pages evicted from DRAM: drop, offer or always [default: as in the policy's
    /// paper]
    #[arg(long, value_name = "NAME")]
    pub clean_victims: Option<CleanVictims>,
    /// How pages migrate between the nodes of two tiers, with the mapped back end and --middle
    /// numa: batch, mbind or copy [default: batch]
    #[arg(long, value_name = "NAME")]
    pub migrate: Option<Migrate>,
    /// Bytes that a point read loads from the middle tier at a time, instead of a page: off, 64,
    /// 128, 256 or 512 [default: off, or $TERRACE_LINES]
    #[arg(long, value_name = "BYTES", value_parser = lines)]
    pub lines: Option<u64>,
    /// Keep pages of which at most 16 lines are wanted in mini pages, several to a DRAM frame;
    /// needs --lines [default: as $TERRACE_LINES says]
    #[arg(long)]
    pub mini_pages: bool,
}

/// Parses bytes of a line; 0 for none.
fn lines(text: &str) -> Result<u64, String> {
    match (text, text.parse()) {
        ("off", _) => Ok(0),
        (_, Ok(bytes @ (64 | 128 | 256 | 512))) => Ok(bytes),
        _ => Err("lines are off, or have 64, 128, 256 or 512 bytes".to_owned()),
    }
}

impl From<MigrationArgs> for Migration {
    fn from(args: MigrationArgs) -> Migration {
        // The builder takes the way of migration and the lines by themselves.
        let MigrationArgs { policy, admission_queue, clean_victims, migrate: _, lines: _, mini_pages: _ } =
            args;
        Migration { policy, clean_victims, admission_queue }
    }
}

impl From<Choice> for MigrationArgs {
    fn from(policy: Choice) -> MigrationArgs {
        MigrationArgs { policy: Some(policy), ..MigrationArgs::default() }
    }
}

impl MigrationArgs {
    /// The flags that give another process the same settings.
    pub(super) fn flags(&self) -> Vec<String> {
        let MigrationArgs { policy, admission_queue, clean_victims, migrate, lines, mini_pages } = self;
        let mut flags = Vec::new();
        flags.extend(policy.map(|policy| format!("--policy={policy}")));
        flags.extend(admission_queue.map(|pages| format!("--admission-queue={pages}")));
        flags.extend(clean_victims.map(|name| format!("--clean-victims={name}")));
        flags.extend(migrate.map(|way| format!("--migrate={way}")));
        flags.extend(lines.map(|bytes| match bytes {
            0 => "--lines=off".to_owned(),
            bytes => format!("--lines={bytes}"),
        }));
        flags.extend(mini_pages.then(|| "--mini-pages".to_owned()));
        flags
    }
}
