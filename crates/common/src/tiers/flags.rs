//! Tier flags as text, for a child process that opens the same database.
//!
//! Destructuring makes the compiler reject a flag that is added but not handed on.

use super::{
    CacheArgs, CommitArgs, LayoutArgs, LogMemoryArgs, MemoryArgs, MiddleArgs, TierArgs, durability_name,
};

/// Environment variable with the default middle tier.
const MIDDLE: &str = "TERRACE_MIDDLE";

/// Flags that require a middle tier.
pub const OF_MIDDLE: [&str; 6] =
    ["policy", "admission-queue", "clean-victims", "migrate", "lines", "mini-pages"];

/// Whether the environment sets a middle tier.
pub fn is_middle_in_environment() -> bool {
    std::env::var_os(MIDDLE).is_some()
}

impl TierArgs {
    /// The flags that give another process the same tiers.
    pub fn flags(&self) -> Vec<String> {
        let TierArgs {
            memory,
            middle,
            migration,
            cache,
            log_memory,
            layout,
            commits,
            replacement,
            page_table,
            swizzle,
            concurrency,
            record_cache,
            seed,
        } = self;
        let LogMemoryArgs { log_memory } = log_memory;
        let MemoryArgs { dram, backend, dram_nodes } = memory;
        let MiddleArgs { middle } = middle;
        let CacheArgs { cache, cache_admission, cache_eviction, cache_write_budget, cache_trust } = cache;
        let LayoutArgs { page_size, value_page_size, compression, log_max } = layout;
        let CommitArgs { durability } = commits;
        let mut flags = vec![
            format!("--seed={seed}"),
            format!("--durability={}", durability_name(*durability)),
            format!("--compression={}", compression),
        ];
        flags.extend(dram.map(|bytes| format!("--dram={bytes}")));
        flags.extend(page_size.map(|bytes| format!("--page-size={bytes}")));
        flags.extend(value_page_size.map(|bytes| format!("--value-page-size={bytes}")));
        flags.extend(backend.map(|backend| format!("--backend={backend}")));
        flags.extend(replacement.map(|name| format!("--replacement={name}")));
        flags.extend(page_table.map(|name| format!("--page-table={name}")));
        flags.extend(swizzle.then(|| "--swizzle".to_owned()));
        flags.extend(concurrency.map(|name| format!("--concurrency={name}")));
        flags.extend(cache.as_ref().map(|cache| format!("--cache={cache}")));
        flags.extend(cache_admission.as_ref().map(|name| format!("--cache-admission={name}")));
        flags.extend(cache_eviction.as_ref().map(|name| format!("--cache-eviction={name}")));
        flags.extend(cache_write_budget.map(|bytes| format!("--cache-write-budget={bytes}")));
        flags.extend(cache.as_ref().map(|_| format!("--cache-trust={cache_trust}")));
        flags.extend(middle.as_ref().map(|middle| format!("--middle={middle}")));
        // A settings file may set these without a middle tier, a command line may not.
        if middle.is_some() || is_middle_in_environment() {
            flags.extend(migration.flags());
        }
        flags.extend(dram_nodes.as_ref().map(|nodes| format!("--dram-nodes={nodes}")));
        flags.extend(record_cache.map(|percent| format!("--record-cache={percent}")));
        flags.extend(log_memory.as_ref().map(|memory| format!("--log-memory={memory}")));
        flags.extend(log_max.map(|bytes| format!("--log-max={bytes}")));
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::line;

    #[test]
    fn another_process_gets_the_same_tiers() {
        let folder = tempfile::tempdir().unwrap();
        let profile = folder.path().join("slow.toml");
        std::fs::write(&profile, "base = 'optane'\nname = 'optane'\nrandom_read_ns = 4000").unwrap();
        for flags in [
            format!("--cache=simulated:{},64MiB", profile.display()),
            "--cache=file:/fast/c,2GiB --cache-admission=small-bypass+obp --cache-eviction=lfru \
             --cache-write-budget=50GiB --cache-trust=synced"
                .to_owned(),
            "--middle=simulated:optane,1.5GiB --policy=.1,.1,.5,1 --admission-queue=7 --clean-victims=always \
             --migrate=copy --lines=off --mini-pages --dram=64MiB --backend=mapped --replacement=fifo-paper --dram-nodes=0,2 --page-size=16KiB \
             --value-page-size=1MiB --compression=lz4 --log-max=1GiB --record-cache=40 --durability=buffered --seed=9 \
             --page-table=hash --swizzle --concurrency=mvto \
             --log-memory=shm:/dev/shm/ring,1MiB"
                .to_owned(),
            String::new(),
        ] {
            let given = line(&flags).unwrap();
            let again = line(&given.tiers.flags().join(" ")).unwrap();
            assert_eq!(again.tiers, given.tiers, "{flags}");
        }
    }
}
