//! The built-in profiles, and the source of each number.
//!
//! Sources: *Spitfire*, "Spitfire: A Three-Tier Buffer Manager for Volatile and Non-Volatile
//! Memory" (SIGMOD 2021); *CXL*, the three-tier buffer manager for CXL memory (HardBD & Active
//! 2024); *NVCache*, "Writes Hurt: Lessons in Cache Design for Optane NVRAM" (2022). Other figures
//! are rounded from data sheets.
//!
//! Reads (rd) and writes (wr): sequential/random; units in bytes; cycles of endurance.
//!
//! | profile         | rd, ns    | wr, ns    | rd, GB/s  | wr, GB/s | unit  | $/GB | cycles |
//! |-----------------|-----------|-----------|-----------|----------|-------|------|--------|
//! | `dram`          | 75/80     | 75/80     | 180/180   | 180/180  | 64    | 10   | 10^10  |
//! | `optane`        | 170/320   | 75/80     | 91.2/28.8 | 27.6/6   | 256   | 4.5  | 10^10  |
//! | `optane-2`      | 170/320   | 75/80     | 12/12     | 2.2/2.2  | 256   | 3.8  | 10^10  |
//! | `cxl-prototype` | 557/557   | 557/557   | 9.4/9.4   | 9.4/9.4  | 64    | 10   | 10^10  |
//! | `cxl-2024`      | 250/250   | 250/250   | 26/26     | 26/26    | 64    | 10   | 10^10  |
//! | `nvme-optane`   | 10k/12k   | 10k/12k   | 2.6/2.4   | 2.4/2.3  | 16384 | 2.8  | 10^12  |
//! | `nvme-flash`    | 20k/80k   | 15k/15k   | 6.5/4     | 4/0.7    | 4096  | 0.2  | 3000   |
//! | `network-disk`  | 500k/500k | 700k/700k | 0.5/0.25  | 0.5/0.25 | 4096  | 2.9  | 10^5   |
//!
//! * **`dram`, `optane`, `nvme-optane`**: Spitfire, Table 1. Our copy lacks the point in Optane's
//!   price; 4.5 fits the hierarchy prices in section 6.6. Write latencies are missing: Optane's are
//!   those of DRAM (NVCache, section 1), the others equal those of reads.
//! * **Writers of `optane`**: one takes 72 % from reads, eight 93 % (NVCache, section 2, figure 2),
//!   by a constant factor per writer between. Concurrent writes fall to three fifths with eight
//!   (figure 1, without values). `dram`: 18 % and 35 % of reads (figure 2).
//! * **Lines of `optane`** that are written back: a store, its write-back and a fence take 62 ns,
//!   against 57 ns on DRAM (Yang et al., "An Empirical Guide to the Behavior and Use of Scalable
//!   Persistent Memory", FAST 2020, figure 2, which NVCache cites). The fence
//!   gets all of it. Sending a line takes a core 1.4 ns, measured on a present one. Spitfire and
//!   HyMem give no times.
//! * **One core and `optane`**: it loads some ten lines at a time, the fill buffers of such
//!   processors, so it reads 3.8 GB/s at 170 ns. The number of lines is our assumption. It writes
//!   3.5 GB/s: four threads reach 13.9 (Izraelevitz et al., "Basic Performance Measurements of the
//!   Intel Optane DC Persistent Memory Module", 2019).
//! * **`optane-2`**: NVCache's machine with two modules. Eight readers read 12 GB/s (section 2).
//!   One writer is "barely competitive" with the disk's 2.2 GB/s (figure 1, section 3.2.1). Large
//!   blocks are no faster (section 5), so random bandwidth equals sequential. The price is .38 of
//!   DRAM's (section 4.2). The rest as `optane`.
//! * **`cxl-prototype`**: CXL, section IV. Writes as reads; price and endurance of DRAM chips.
//! * **`cxl-2024`**: eight lanes of PCIe 5, four fifths of 32 GB/s each way, at two to three times
//!   local latency, as makers of controllers state. Price as above.
//! * **`nvme-flash`**: data sheets, PCIe 4 x4, three bits per cell. Writes end in a buffer, and
//!   cleaning limits random ones.
//! * **`network-disk`**: a cloud volume, 8 to 16 KiB per operation, three years at eight cents per
//!   GB and month.
//! * **Caches**: 384 KiB before each memory, about a hundredth of the papers' 36 MiB, like all
//!   sizes here. None before disks.

use std::borrow::Cow;
use std::io;
use std::sync::LazyLock;

use super::profile::Profile;

/// The last-level cache at the scale of the repeated experiments.
const CACHE_BYTES: u32 = 384 << 10;

/// Lines that a core loads at a time.
const CORE_LINES: f32 = 10.0;

/// `[[sequential, random], [sequential, random]]`: reads, writes.
type ByAccess = [[f64; 2]; 2];

fn memory(
    name: &'static str,
    latency_ns: ByAccess,
    gb_s: ByAccess,
    granularity_bytes: u32,
    price_per_gb: f64,
) -> Profile {
    Profile {
        name: Cow::Borrowed(name),
        file: None,
        latency_ns,
        gb_s,
        core_gb_s: [f32::INFINITY; 2],
        write_share_by_writers: Cow::Borrowed(&[]),
        read_share_by_writers: Cow::Borrowed(&[]),
        granularity_bytes,
        persistent: false,
        price_per_gb,
        endurance_cycles: 1e10,
        cache_bytes: CACHE_BYTES,
        dram_cache_bytes: 0,
        page_cache: None,
        counts_lines: false,
        joins_writes: false,
        move_ns: 0,
        write_back_ns: 0.0,
        fence_ns: 0.0,
    }
}

fn disk(profile: Profile, endurance_cycles: f64) -> Profile {
    Profile { persistent: true, cache_bytes: 0, endurance_cycles, ..profile }
}

fn optane(name: &'static str, gb_s: ByAccess, price_per_gb: f64) -> Profile {
    Profile {
        write_share_by_writers: Cow::Borrowed(&[1.0, 0.93, 0.86, 0.8, 0.75, 0.7, 0.65, 0.6]),
        read_share_by_writers: Cow::Borrowed(&[0.28, 0.23, 0.188, 0.155, 0.127, 0.104, 0.085, 0.07]),
        persistent: true,
        write_back_ns: 1.4,
        fence_ns: 62.0,
        ..memory(name, [[170.0, 320.0], [75.0, 80.0]], gb_s, 256, price_per_gb)
    }
}

static BUILT_IN: LazyLock<[Profile; 8]> = LazyLock::new(|| {
    [
        Profile {
            read_share_by_writers: Cow::Borrowed(&[0.82, 0.79, 0.77, 0.74, 0.72, 0.69, 0.67, 0.65]),
            ..memory("dram", [[75.0, 80.0]; 2], [[180.0; 2]; 2], 64, 10.0)
        },
        Profile {
            core_gb_s: [CORE_LINES * 64.0 / 170.0, 3.5],
            ..optane("optane", [[91.2, 28.8], [27.6, 6.0]], 4.5)
        },
        optane("optane-2", [[12.0; 2], [2.2; 2]], 3.8),
        memory("cxl-prototype", [[557.0; 2]; 2], [[9.4; 2]; 2], 64, 10.0),
        memory("cxl-2024", [[250.0; 2]; 2], [[26.0; 2]; 2], 64, 10.0),
        disk(memory("nvme-optane", [[10e3, 12e3]; 2], [[2.6, 2.4], [2.4, 2.3]], 16 << 10, 2.8), 1e12),
        disk(memory("nvme-flash", [[20e3, 80e3], [15e3; 2]], [[6.5, 4.0], [4.0, 0.7]], 4096, 0.2), 3e3),
        disk(memory("network-disk", [[500e3; 2], [700e3; 2]], [[0.5, 0.25]; 2], 4096, 2.9), 1e5),
    ]
});

impl Profile {
    /// The built-in profile `name`.
    ///
    /// # Errors
    /// `NotFound`, with the available names.
    pub fn named(name: &str) -> io::Result<Profile> {
        let found = BUILT_IN.iter().find(|profile| profile.name == name);
        found.cloned().ok_or_else(|| {
            let names: Vec<&str> = Profile::names().collect();
            let names = names.join(", ");
            let what =
                format!("there is no profile \"{name}\"; there are {names}, and files that end in .toml");
            io::Error::new(io::ErrorKind::NotFound, what)
        })
    }

    /// The names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|profile| &*profile.name)
    }

    /// The built-in profile `name`, or the one in the file `name` if it ends in `.toml`.
    ///
    /// # Errors
    /// As [`Profile::named`], and those of reading the file. `Unsupported` without the feature
    /// `profile-files`.
    pub fn find(name: &str) -> io::Result<Profile> {
        match name.ends_with(".toml") {
            #[cfg(feature = "profile-files")]
            true => Profile::load(std::path::Path::new(name)),
            #[cfg(not(feature = "profile-files"))]
            true => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("{name}: this program was built without the feature `profile-files` of terrace-io"),
            )),
            false => Profile::named(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_read_say_why() {
        let error = Profile::find("no-such-profile.toml").unwrap_err();
        assert!(error.to_string().contains("no-such-profile.toml"), "{error}");
        if cfg!(not(feature = "profile-files")) {
            assert!(error.to_string().contains("profile-files"), "{error}");
        }
    }
}
