//! Hardware of this machine and its speed: NUMA nodes, DAX devices and mounts, a disk.
//!
//! All measurements take under two seconds. They tell kinds of memory apart; they do not rank
//! machines. Latency is a chain of dependent loads through a random cycle larger than most caches.
//! Bandwidth is one thread summing and filling the same memory. A node is measured from the CPUs
//! this process may use, in memory that the kernel confirms is on the node
//! (`terrace_io::measure_node`). Disk reads are random 4 KiB blocks, one at a time, with O_DIRECT
//! if the file system supports it.

mod disk;

use std::fs;
use std::path::Path;

use serde::Serialize;

use terrace_common::failure::Outcome;

/// Result of `terrace devices`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Devices {
    /// NUMA nodes with memory.
    pub nodes: Vec<Node>,
    /// Whether the kernel migrates pages between nodes automatically.
    pub numa_balancing: bool,
    /// DAX devices and mounts.
    pub dax: Vec<Dax>,
    /// The disk under the given directory.
    pub store: Vec<disk::Disk>,
}

/// A NUMA node with memory.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Node {
    /// Node number.
    pub node: u32,
    /// CPUs on the node; empty for memory-only nodes.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub bytes: u64,
    /// Bytes free or in the page cache.
    pub free_bytes: u64,
    /// Distance to each node, by number; 10 means local.
    pub distances: Vec<u32>,
    /// Nanoseconds per dependent load.
    pub read_latency_ns: f64,
    /// Read bandwidth of one thread, 10^9 bytes per second.
    pub read_gb_s: f64,
    /// Write bandwidth of one thread, 10^9 bytes per second.
    pub write_gb_s: f64,
    /// Firmware data of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hmat: Option<Hmat>,
    /// The node's kernel memory tier; lower is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_tier: Option<u32>,
    /// Why the node was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmeasured: Option<String>,
}

/// Firmware (HMAT) data for access from adjacent CPUs; 0 means unknown.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Hmat {
    /// Read latency in nanoseconds.
    pub read_latency_ns: u64,
    /// Write latency in nanoseconds.
    pub write_latency_ns: u64,
    /// Read bandwidth, 10^9 bytes per second.
    pub read_gb_s: f64,
    /// Write bandwidth, 10^9 bytes per second.
    pub write_gb_s: f64,
}

/// Directly mappable memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dax {
    /// Device path or mount point.
    pub path: String,
    /// `device`, or the file system type.
    pub kind: String,
}

/// Examines the machine and the disk under `store`.
pub fn find(store: &Path) -> Outcome<Devices> {
    let disk = disk::measure(store)?;
    let nodes = terrace_io::nodes().into_iter().map(measure).collect();
    let numa_balancing = terrace_io::is_numa_balancing();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut dax = dax_devices(Path::new("/sys/bus/dax/devices"));
    dax.extend(dax_mounts(&mounts));
    Ok(Devices { nodes, numa_balancing, dax, store: vec![disk] })
}

/// Measures a node, or records why it could not.
fn measure(found: terrace_io::Node) -> Node {
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
    match terrace_io::measure_node(node.node) {
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

/// DAX mounts from the kernel's mount table.
fn dax_mounts(table: &str) -> Vec<Dax> {
    let mount = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let mount = mount.split(' ').nth(4)?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1)?);
        let is_dax = options.split(',').any(|option| matches!(option, "dax" | "dax=always"));
        is_dax.then(|| Dax { path: mount.replace("\\040", " "), kind: kind.to_owned() })
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
