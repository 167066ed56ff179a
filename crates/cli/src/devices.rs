//! What this machine has, and how fast it is: NUMA nodes, DAX devices and mounts, the disk under a directory.
//!
//! Measurements are short (well under two seconds in all) and mean to tell kinds of memory apart, not to rank
//! machines. Latency is a chase of dependent loads through a random cycle of cache lines larger than most caches;
//! bandwidth is one thread's sum over, and fill of, the same memory. A node is measured from the processors this
//! process may use, in memory bound to that node. The disk is read at random in 4 KiB blocks, one at a time, past the
//! page cache where the file system allows it.

mod bind;
mod disk;
mod memory;

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::failure::Outcome;

/// What `terrace devices` found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Devices {
    /// The NUMA nodes that have memory.
    pub nodes: Vec<Node>,
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
    /// Nanoseconds of a dependent load.
    pub read_latency_ns: f64,
    /// Bandwidth of reading with one thread, 10^9 bytes a second.
    pub read_gb_s: f64,
    /// Bandwidth of writing with one thread, 10^9 bytes a second.
    pub write_gb_s: f64,
    /// Why nothing could be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
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
    let nodes = nodes(Path::new("/sys/devices/system/node")).into_iter().map(memory::measure).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut dax = dax_devices(Path::new("/sys/bus/dax/devices"));
    dax.extend(dax_mounts(&mounts));
    Ok(Devices { nodes, dax, store: vec![disk] })
}

/// The nodes below a directory of the kernel's form. A machine without one has a single node.
fn nodes(directory: &Path) -> Vec<Node> {
    let names = entries(directory);
    let numbers = names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let mut nodes: Vec<Node> = numbers
        .map(|node| {
            let of = |file: &str| {
                fs::read_to_string(directory.join(format!("node{node}")).join(file)).unwrap_or_default()
            };
            Node {
                node,
                cpus: numbers_of(&of("cpulist")),
                bytes: total_memory(&of("meminfo")),
                ..Node::default()
            }
        })
        .filter(|node| node.bytes > 0)
        .collect();
    if nodes.is_empty() {
        let bytes = total_memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
        let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        nodes.push(Node { cpus: (0..count).collect(), bytes, ..Node::default() });
    }
    nodes.sort_by_key(|node| node.node);
    nodes
}

fn entries(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The numbers in a list like `0-3,8`.
fn numbers_of(list: &str) -> Vec<u32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?.min(1 << 16))
    });
    ranges.flatten().collect()
}

/// The bytes of `MemTotal` in the kernel's memory summary, of a node or the machine.
fn total_memory(summary: &str) -> u64 {
    let line = summary.lines().find(|line| line.contains("MemTotal:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) * 1024
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
    fn nodes_of_the_kernels_form() {
        let directory = tempfile::tempdir().unwrap();
        for (node, cpus, kib) in [(0, "0-1,4\n", 2048), (2, "\n", 1024), (3, "2\n", 0)] {
            let place = directory.path().join(format!("node{node}"));
            fs::create_dir(&place).unwrap();
            fs::write(place.join("cpulist"), cpus).unwrap();
            fs::write(
                place.join("meminfo"),
                format!("Node {node} MemTotal:   {kib} kB\nNode x MemFree: 1 kB\n"),
            )
            .unwrap();
        }
        fs::write(directory.path().join("online"), "0-3").unwrap();
        let nodes = nodes(directory.path());
        let found: Vec<_> = nodes.into_iter().map(|n| (n.node, n.cpus, n.bytes)).collect();
        assert_eq!(found, [(0, vec![0, 1, 4], 2 << 20), (2, vec![], 1 << 20)]);
    }

    #[test]
    fn a_machine_without_nodes_is_one_node() {
        let nodes = nodes(Path::new("/no/such/directory"));
        assert!(nodes.len() == 1 && nodes[0].bytes > 0 && !nodes[0].cpus.is_empty());
    }

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
