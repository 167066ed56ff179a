//! Tier flags as text again, for a process that is to open its database as this one does.
//!
//! All flags are named in one place, taken apart field by field, so that one that is added here without being handed on does not
//! compile.

use super::TierArgs;

/// The variable that says what a database means that says nothing of a middle tier.
const MIDDLE: &str = "TERRACE_MIDDLE";

/// Flags that mean nothing where there is no middle tier.
pub const OF_MIDDLE: [&str; 4] = ["policy", "admission-queue", "clean-victims", "migrate"];

/// Whether the environment gives databases a middle tier.
pub fn is_middle_in_environment() -> bool {
    std::env::var_os(MIDDLE).is_some()
}

impl TierArgs {
    /// The flags by which another process gets the same tiers.
    pub fn flags(&self) -> Vec<String> {
        let TierArgs {
            dram,
            backend,
            replacement,
            middle,
            cache,
            cache_admission,
            cache_eviction,
            cache_write_budget,
            cache_trust,
            policy,
            admission_queue,
            clean_victims,
            dram_nodes,
            migrate,
            page_size,
            value_page_size,
            compression,
            log_max,
            record_cache,
            durability,
            seed,
        } = self;
        let mut flags = vec![
            format!("--seed={seed}"),
            format!("--durability={}", durability.name()),
            format!("--compression={}", compression.name()),
        ];
        flags.extend(dram.map(|bytes| format!("--dram={bytes}")));
        flags.extend(page_size.map(|bytes| format!("--page-size={bytes}")));
        flags.extend(value_page_size.map(|bytes| format!("--value-page-size={bytes}")));
        flags.extend(backend.map(|backend| format!("--backend={backend}")));
        flags.extend(replacement.map(|name| format!("--replacement={name}")));
        flags.extend(cache.as_ref().map(|cache| format!("--cache={cache}")));
        flags.extend(cache_admission.as_ref().map(|name| format!("--cache-admission={name}")));
        flags.extend(cache_eviction.as_ref().map(|name| format!("--cache-eviction={name}")));
        flags.extend(cache_write_budget.map(|bytes| format!("--cache-write-budget={bytes}")));
        flags.extend(cache.as_ref().map(|_| format!("--cache-trust={cache_trust}")));
        flags.extend(middle.as_ref().map(|middle| format!("--middle={middle}")));
        // A file of settings may say these without a middle tier, a command line may not.
        if middle.is_some() || is_middle_in_environment() {
            flags.extend(policy.map(|policy| format!("--policy={policy}")));
            flags.extend(admission_queue.map(|pages| format!("--admission-queue={pages}")));
            flags.extend(clean_victims.map(|name| format!("--clean-victims={name}")));
            flags.extend(migrate.map(|way| format!("--migrate={way}")));
        }
        flags.extend(dram_nodes.as_ref().map(|nodes| format!("--dram-nodes={nodes}")));
        flags.extend(record_cache.map(|percent| format!("--record-cache={percent}")));
        flags.extend(log_max.map(|bytes| format!("--log-max={bytes}")));
        flags
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::{BenchCommand, Cli, Command, YcsbArgs};

    fn ycsb(flags: &[String]) -> YcsbArgs {
        let line = ["terrace", "bench", "ycsb"].into_iter().map(str::to_owned);
        match Cli::try_parse_from(line.chain(flags.iter().cloned())).unwrap().command {
            Command::Bench(BenchCommand::Ycsb(args)) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn another_process_gets_the_same_tiers() {
        let place = tempfile::tempdir().unwrap();
        let profile = place.path().join("slow.toml");
        std::fs::write(&profile, "base = 'optane'\nname = 'optane'\nrandom_read_ns = 4000").unwrap();
        for line in [
            format!("--cache=simulated:{},64MiB", profile.display()),
            "--cache=file:/fast/c,2GiB --cache-admission=small-bypass+obp --cache-eviction=lfru \
             --cache-write-budget=50GiB --cache-trust=synced"
                .to_owned(),
            "--middle=simulated:optane,1.5GiB --policy=.1,.1,.5,1 --admission-queue=7 --clean-victims=always \
             --migrate=copy --dram=64MiB --backend=mapped --replacement=fifo-paper --dram-nodes=0,2 --page-size=16KiB \
             --value-page-size=1MiB --compression=lz4 --log-max=1GiB --record-cache=40 --durability=buffered --seed=9"
                .to_owned(),
            String::new(),
        ] {
            let given = ycsb(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
            let again = ycsb(&given.tiers.flags());
            assert_eq!(again.tiers.settings(None), given.tiers.settings(None), "{line}");
        }
    }
}
