//! The profiles that are there without a file, and where each number is from.
//!
//! Sources: *Spitfire*, "Spitfire: A Three-Tier Buffer Manager for Volatile and Non-Volatile Memory" (SIGMOD 2021); *CXL*, the
//! three-tier buffer manager for CXL memory (HardBD & Active 2024); *NVCache*, "Writes Hurt: Lessons in Cache Design for Optane
//! NVRAM" (2022). What none of them gives rests on data sheets of devices of its kind, rounded, and says so: it tells
//! kinds of devices apart, and is not a measurement of any one.
//!
//! | profile         | read seq/random, ns | write seq/random, ns | read GB/s   | write GB/s  | unit, bytes | $/GB | cycles |
//! |-----------------|---------------------|----------------------|-------------|-------------|-------------|------|--------|
//! | `dram`          | 75 / 80             | 75 / 80              | 180 / 180   | 180 / 180   | 64          | 10   | 10^10  |
//! | `optane`        | 170 / 320           | 75 / 80              | 91.2 / 28.8 | 27.6 / 6    | 256         | 4.5  | 10^10  |
//! | `optane-2`      | 170 / 320           | 75 / 80              | 12 / 12     | 2.2 / 2.2   | 256         | 3.8  | 10^10  |
//! | `cxl-prototype` | 557 / 557           | 557 / 557            | 9.4 / 9.4   | 9.4 / 9.4   | 64          | 10   | 10^10  |
//! | `cxl-2024`      | 250 / 250           | 250 / 250            | 26 / 26     | 26 / 26     | 64          | 10   | 10^10  |
//! | `nvme-optane`   | 10 000 / 12 000     | 10 000 / 12 000      | 2.6 / 2.4   | 2.4 / 2.3   | 16 384      | 2.8  | 10^12  |
//! | `nvme-flash`    | 20 000 / 80 000     | 15 000 / 15 000      | 6.5 / 4     | 4 / 0.7     | 4096        | 0.2  | 3000   |
//! | `network-disk`  | 500 000 / 500 000   | 700 000 / 700 000    | 0.5 / 0.25  | 0.5 / 0.25  | 4096        | 2.9  | 10^5   |
//!
//! * **`dram`, `optane`, `nvme-optane`**: read latencies, bandwidths, units, price and endurance are Spitfire's Table 1. The text of the table
//!   that is at hand has lost the point in Optane's price; 4.5 is what the prices of whole hierarchies in its section 6.6 come
//!   to. The table has no latency of writes. Optane's are "roughly the same latency as DRAM" (NVCache, section 1: they end in
//!   a buffer); those of the others are taken as those of reads, which is how the data sheet of the disk has it.
//! * **Writers of `optane`**: one takes 72 % from reads, eight 93 % (NVCache, section 2, figure 2: 12 to 3.4 to .8 GB/s); between them the
//!   same factor for each further writer. Writes among themselves scale negatively (figure 1, whose values are not in the text): a slow
//!   fall to three fifths with eight. The same figure 2 gives `dram` 18 % with one and 35 % with eight; its writes are not said
//!   to lose anything.
//! * **`optane-2`**: the machine of NVCache, which has two modules, where Spitfire's table has the bandwidth of many. Eight readers read 12 GB/s
//!   there (section 2). What one writer writes is "barely competitive" with the disk (figure 1, whose values are not in the text), and the disk
//!   writes 2.2 GB/s (section 3.2.1), so 2.2 it is. Blocks larger than 16 KiB are no faster (section 5), and media that work in units of 256 bytes
//!   need no more than one: here and there has the bandwidth of one after the other, in whole units. The price is .38 of DRAM's (section
//!   4.2). Latencies, writers' shares, unit and endurance are those of `optane`.
//! * **`cxl-prototype`**: latency and the largest bandwidth, CXL, section IV. It gives neither writes, taken as reads, nor a price: the chips
//!   are those of DRAM, and so is the price and the endurance.
//! * **`cxl-2024`**: a product on eight lanes of PCIe 5, 32 GB/s each way of which protocol leaves about four fifths, at
//!   two to three times the latency of local memory, as makers of controllers state. "Substantially lower access latency and higher bandwidth are
//!   expected for production-ready devices" (CXL, section IV). Price as above.
//! * **`nvme-flash`**: data sheets of data-centre drives on four lanes of PCIe 4 with three bits a cell: a random read is one of a flash page;
//!   a write ends in a buffer with a capacitor, and random ones are held back by the cleaning of blocks. Three thousand cycles.
//! * **`network-disk`**: a general-purpose volume of a cloud, half a millisecond away, at 8 to 16 KiB an operation. Its price is that of a
//!   gigabyte for three years at eight cents a month.
//! * **Caches**: 384 KiB before each memory. The papers' processors have some 36 MiB; the experiments are repeated at about a
//!   hundredth of their sizes, and so is this. Disks are not read through a processor's cache.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::profile::Profile;

/// What the claims' sizes make of a last-level cache.
const CACHE_BYTES: u64 = 384 << 10;

/// `[[sequential, random], [sequential, random]]`: reads, writes.
type ByAccess = [[f64; 2]; 2];

fn memory(
    name: &'static str,
    latency_ns: ByAccess,
    gb_s: ByAccess,
    granularity_bytes: u64,
    price_per_gb: f64,
) -> Profile {
    Profile {
        name: Cow::Borrowed(name),
        file: None,
        latency_ns,
        gb_s,
        write_share_by_writers: Cow::Borrowed(&[]),
        read_share_by_writers: Cow::Borrowed(&[]),
        granularity_bytes,
        persistent: false,
        price_per_gb,
        endurance_cycles: 1e10,
        cache_bytes: CACHE_BYTES,
        dram_cache_bytes: 0,
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
        ..memory(name, [[170.0, 320.0], [75.0, 80.0]], gb_s, 256, price_per_gb)
    }
}

pub(super) static BUILT_IN: LazyLock<[Profile; 8]> = LazyLock::new(|| {
    [
        Profile {
            read_share_by_writers: Cow::Borrowed(&[0.82, 0.79, 0.77, 0.74, 0.72, 0.69, 0.67, 0.65]),
            ..memory("dram", [[75.0, 80.0]; 2], [[180.0; 2]; 2], 64, 10.0)
        },
        optane("optane", [[91.2, 28.8], [27.6, 6.0]], 4.5),
        optane("optane-2", [[12.0; 2], [2.2; 2]], 3.8),
        memory("cxl-prototype", [[557.0; 2]; 2], [[9.4; 2]; 2], 64, 10.0),
        memory("cxl-2024", [[250.0; 2]; 2], [[26.0; 2]; 2], 64, 10.0),
        disk(memory("nvme-optane", [[10e3, 12e3]; 2], [[2.6, 2.4], [2.4, 2.3]], 16 << 10, 2.8), 1e12),
        disk(memory("nvme-flash", [[20e3, 80e3], [15e3; 2]], [[6.5, 4.0], [4.0, 0.7]], 4096, 0.2), 3e3),
        disk(memory("network-disk", [[500e3; 2], [700e3; 2]], [[0.5, 0.25]; 2], 4096, 2.9), 1e5),
    ]
});
