//! What this machine has, and how fast it is: NUMA nodes, DAX devices and mounts, the disk under a directory.
//!
//! Measurements are short (well under two seconds in all) and mean to tell kinds of memory apart, not to rank
//! machines. Latency is a chase of dependent loads through a random cycle of cache lines larger than most caches;
//! bandwidth is one thread's sum over, and fill of, the same memory. A node is measured from the processors this
//! process may use, in memory that the kernel says is of that node (`terrace_block::measure_node`). The disk is read at random in 4 KiB blocks, one at a time, past the
//! page cache where the file system allows it.

mod disk;

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::failure::Outcome;

/// What `terrace devices` found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Devices {
    /// The NUMA nodes that have memory.
    pub nodes: Vec<Node>,
    /// Whether the kernel moves pages between nodes on its own.
    pub numa_balancing: bool,
    /// Character devices and mounts with direct access.
    pub dax: Vec<Dax>,
    /// The disk asked about.
    pub store: Vec<disk::Disk>,
}

/// A NUMA node with memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Node {
    /// Its number.
    pub node: u32,
    /// Processors on it; none on a node of memory alone.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub bytes: u64,
    /// Bytes that are free, or hold files that can be read again.
    pub free_bytes: u64,
    /// How far each node is, by number; 10 is itself.
    pub distances: Vec<u32>,
    /// Nanoseconds of a dependent load.
    pub read_latency_ns: f64,
    /// Bandwidth of reading with one thread, 10^9 bytes a second.
    pub read_gb_s: f64,
    /// Bandwidth of writing with one thread, 10^9 bytes a second.
    pub write_gb_s: f64,
    /// What the firmware says of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hmat: Option<Hmat>,
    /// The kernel's memory tier that it is in, less for faster memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_tier: Option<u32>,
    /// Why nothing could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
}

/// A node's memory by the firmware's table (HMAT), as seen from the processors next to it; 0 is not said.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Hmat {
    /// Nanoseconds of a read.
    pub read_latency_ns: u64,
    /// Nanoseconds of a write.
    pub write_latency_ns: u64,
    /// 10^9 bytes a second read.
    pub read_gb_s: f64,
    /// 10^9 bytes a second written.
    pub write_gb_s: f64,
}

/// Memory that can be mapped as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dax {
    /// The device, or where the file system is mounted.
    pub path: String,
    /// `device`, or the kind of file system.
    pub kind: String,
}

/// Looks at the whole machine, and at the disk under `store`.
pub fn find(store: &Path) -> Outcome<Devices> {
    let disk = disk::measure(store)?;
    let nodes = terrace_block::nodes().into_iter().map(measure).collect();
    let numa_balancing = terrace_block::is_numa_balancing();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut dax = dax_devices(Path::new("/sys/bus/dax/devices"));
    dax.extend(dax_mounts(&mounts));
    Ok(Devices { nodes, numa_balancing, dax, store: vec![disk] })
}

/// Measures a node; what cannot be measured says why instead.
fn measure(found: terrace_block::Node) -> Node {
    let gb_s = |mib_s: u64| mib_s as f64 * 1_048_576.0 / 1e9;
    let hmat = found.performance.map(|said| Hmat {
        read_latency_ns: said.read_latency_ns,
        write_latency_ns: said.write_latency_ns,
        read_gb_s: gb_s(said.read_mib_s),
        write_gb_s: gb_s(said.write_mib_s),
    });
    let mut node = Node {
        node: found.node,
        cpus: found.cpus,
        bytes: found.bytes,
        free_bytes: found.free_bytes,
        distances: found.distances,
        hmat,
        memory_tier: found.memory_tier,
        ..Node::default()
    };
    match terrace_block::measure_node(node.node) {
        Ok(speed) => {
            (node.read_latency_ns, node.read_gb_s, node.write_gb_s) =
                (speed.read_latency_ns, speed.read_gb_s, speed.write_gb_s);
        }
        Err(error) => node.unmeasured = Some(error.to_string()),
    }
    node
}

fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn dax_devices(directory: &Path) -> Vec<Dax> {
    let device = |name| Dax { path: format!("/dev/{name}"), kind: "device".to_owned() };
    entries(directory).into_iter().map(device).collect()
}

/// Mounts with direct access, from the kernel's table of mounts.
fn dax_mounts(table: &str) -> Vec<Dax> {
    let mount = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let place = mount.split(' ').nth(4)?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let is_dax = options.split(',').any(|option| matches!(option, "dax" | "dax=always"));
        is_dax.then(|| Dax { path: place.replace("\\040", " "), kind: kind.to_owned() })
    };
    table.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_with_direct_access() {
        let table = "36 35 98:0 / /mnt/pm\\040em rw,noatime - ext4 /dev/pmem0 rw,dax=always\n\
                     37 35 98:1 / / rw - ext4 /dev/vda rw,dax=never\n38 1 0:1 / /proc rw - proc proc rw\nbroken\n";
        assert_eq!(dax_mounts(table), [Dax { path: "/mnt/pm em".to_owned(), kind: "ext4".to_owned() }]);
    }

    #[test]
    fn this_machine_has_memory_and_a_disk() {
        let directory = tempfile::tempdir().unwrap();
        let found = find(directory.path()).unwrap();
        assert!(
            found.nodes.iter().any(|node| node.read_latency_ns > 0.5 && node.read_gb_s > 0.1),
            "{found:?}"
        );
        assert!(found.store[0].read_latency_us > 0.0);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
        let error = super::find(Path::new("/no/such/directory")).unwrap_err();
        assert!(error.to_string().contains("/no/such/directory"));
    }
}
