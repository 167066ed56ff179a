//! Sets of nodes, and their description in `/sys/devices/system/node`.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;

/// Upper bound on node numbers, as in the kernel.
pub(super) const NODES_MAX: usize = 1024;

/// A non-empty set of node numbers.
///
/// ```
/// use terrace_io::NodeSet;
///
/// let nodes: NodeSet = "0,2-3".parse().unwrap();
/// assert_eq!(nodes.iter().collect::<Vec<_>>(), [0, 2, 3]);
/// assert_eq!(nodes.to_string(), "0,2,3");
/// assert!("".parse::<NodeSet>().is_err() && "3-1".parse::<NodeSet>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NodeSet {
    mask: [u64; NODES_MAX / 64],
}

impl NodeSet {
    /// The set of `nodes`.
    ///
    /// # Errors
    /// If the set is empty or a number is 1024 or more.
    pub fn of(nodes: &[u32]) -> Result<NodeSet, String> {
        let mut set = NodeSet { mask: [0; NODES_MAX / 64] };
        for &node in nodes {
            let word = set.mask.get_mut(node as usize / 64);
            *word.ok_or_else(|| format!("node {node} is not below {NODES_MAX}"))? |= 1 << (node % 64);
        }
        if nodes.is_empty() { Err("no nodes are named".to_owned()) } else { Ok(set) }
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, node: u32) -> bool {
        self.mask.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// The numbers, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        (0..NODES_MAX as u32).filter(|&node| self.contains(node))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.mask.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        false
    }

    pub(super) fn mask(&self) -> &[u64; NODES_MAX / 64] {
        &self.mask
    }
}

impl fmt::Display for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, node) in self.iter().enumerate() {
            write!(f, "{}{node}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeSet({self})")
    }
}

impl FromStr for NodeSet {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeSet, String> {
        let wrong = || format!("\"{}\" is not a list of nodes, as in 1 or 0,2-3", text.escape_debug());
        NodeSet::of(&numbers(text).ok_or_else(wrong)?)
    }
}

/// Parses a list like `0-3,8` with numbers below 65,536.
fn numbers(list: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for range in list.trim().split(',').filter(|range| !list.trim().is_empty() || !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || last >= 1 << 16 {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// The firmware's figures for a node, for its nearest processors (ACPI HMAT).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Performance {
    /// Read latency, nanoseconds.
    pub read_latency_ns: u64,
    /// Write latency, nanoseconds.
    pub write_latency_ns: u64,
    /// Read bandwidth, 2^20 bytes per second.
    pub read_mib_s: u64,
    /// Write bandwidth, 2^20 bytes per second.
    pub write_mib_s: u64,
}

/// A node with memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The node's number.
    pub node: u32,
    /// Its processors; none on a memory-only node.
    pub cpus: Vec<u32>,
    /// Bytes of memory.
    pub bytes: u64,
    /// Bytes that are free or hold clean file pages.
    pub free_bytes: u64,
    /// Distances to all nodes, by number; 10 to itself.
    pub distances: Vec<u32>,
    /// The firmware's figures, if any.
    pub performance: Option<Performance>,
    /// The kernel's memory tier, lower for faster memory; `None` without tiers.
    pub memory_tier: Option<u32>,
}

/// The nodes with memory, by number; one on a kernel without NUMA.
///
/// ```
/// let nodes = terrace_io::nodes();
/// assert!(nodes.iter().any(|node| node.bytes > 0 && !node.cpus.is_empty()));
/// ```
pub fn nodes() -> Vec<Node> {
    nodes_below(Path::new("/sys/devices"), Path::new("/proc/meminfo"))
}

/// Whether the kernel moves pages by itself (`kernel.numa_balancing`). It moves placed pages to
/// their last user, and marks pages absent to find that user.
pub fn is_numa_balancing() -> bool {
    let setting = fs::read_to_string("/proc/sys/kernel/numa_balancing");
    setting.is_ok_and(|setting| setting.trim() != "0")
}

/// Checks that `bytes` fit on `nodes`, in equal parts.
///
/// ```
/// use terrace_io::{NodeSet, check_room};
///
/// let first = NodeSet::of(&[0]).unwrap();
/// assert!(check_room(&first, 1 << 20).is_ok());
/// assert!(check_room(&first, u64::MAX).unwrap_err().to_string().contains("node 0"));
/// let absent = NodeSet::of(&[1000]).unwrap();
/// assert!(check_room(&absent, 1).unwrap_err().to_string().contains("node 1000"));
/// ```
///
/// # Errors
/// `NotFound` for a node that does not exist or has no memory, with the existing ones;
/// `OutOfMemory` for one with too little free, with its memory and an estimate of the room.
pub fn check_room(nodes: &NodeSet, bytes: u64) -> io::Result<()> {
    check_room_in(&self::nodes(), nodes, bytes)
}

fn check_room_in(there: &[Node], nodes: &NodeSet, bytes: u64) -> io::Result<()> {
    let share = bytes.div_ceil(nodes.len() as u64);
    for number in nodes.iter() {
        let Some(node) = there.iter().find(|node| node.node == number) else {
            let those = Vec::from_iter(there.iter().map(|node| node.node.to_string())).join(", ");
            let what = format!("NUMA node {number} does not exist; nodes with memory: {those}");
            return Err(io::Error::new(io::ErrorKind::NotFound, what));
        };
        if node.free_bytes < share {
            let Node { bytes, free_bytes: free, .. } = node;
            let fits = room_in(there, nodes) >> 20;
            let what = format!(
                "node {number} has {free} bytes of memory free of {bytes}, which is less than the {share} wanted; \
                 about {fits}MiB would fit"
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, what));
        }
    }
    Ok(())
}

/// Bytes that fit on `nodes` in equal parts, less one sixteenth as a margin.
fn room_in(there: &[Node], nodes: &NodeSet) -> u64 {
    let free = |number| there.iter().find(|node| node.node == number).map_or(0, |node| node.free_bytes);
    let least = nodes.iter().map(free).min().unwrap_or(0);
    (least - least / 16).saturating_mul(nodes.len() as u64)
}

pub(super) fn explain(what: &str, nodes: &NodeSet, error: io::Error) -> io::Error {
    let plural = if nodes.len() > 1 { "s" } else { "" };
    let (kind, why) = match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENODEV) => (
            io::ErrorKind::InvalidInput,
            "no such node with memory here, or not for this process (see cpuset)",
        ),
        Some(libc::EPERM | libc::EACCES) => (
            io::ErrorKind::PermissionDenied,
            "not permitted; a container may need the capability CAP_SYS_NICE",
        ),
        Some(libc::ENOSYS) => (
            io::ErrorKind::Unsupported,
            "the kernel does not have this call: it was built without NUMA (CONFIG_NUMA), or a filter of system calls hides it",
        ),
        Some(libc::ENOMEM) => {
            (io::ErrorKind::OutOfMemory, "no memory for it, or too many mappings (vm.max_map_count)")
        }
        _ => (error.kind(), "refused"),
    };
    io::Error::new(kind, format!("{what} node{plural} {nodes}: {why}: {error}"))
}

fn nodes_below(devices: &Path, meminfo: &Path) -> Vec<Node> {
    let directory = devices.join("system/node");
    let tiers = memory_tiers(&devices.join("virtual/memory_tiering"));
    let names = names_in(&directory);
    let found = names.iter().filter_map(|name| name.strip_prefix("node")?.parse::<u32>().ok());
    let mut nodes: Vec<Node> = found
        .map(|node| {
            let path = directory.join(format!("node{node}"));
            let of = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
            let summary = of("meminfo");
            Node {
                node,
                cpus: numbers(&of("cpulist")).unwrap_or_default(),
                bytes: bytes_of(&summary, "MemTotal:"),
                free_bytes: free_bytes(&summary),
                distances: of("distance").split_whitespace().filter_map(|far| far.parse().ok()).collect(),
                performance: performance(&path.join("access0/initiators")),
                memory_tier: tiers.iter().find(|(_, nodes)| nodes.contains(&node)).map(|(tier, _)| *tier),
            }
        })
        .filter(|node| node.bytes > 0)
        .collect();
    if nodes.is_empty() {
        let summary = fs::read_to_string(meminfo).unwrap_or_default();
        let count = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        let bytes = bytes_of(&summary, "MemTotal:");
        let free_bytes = free_bytes(&summary);
        nodes.push(Node {
            cpus: (0..count).collect(),
            bytes,
            free_bytes,
            distances: vec![10],
            ..Node::default()
        });
    }
    nodes.sort_by_key(|node| node.node);
    nodes
}

fn names_in(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

/// The firmware's figures; the kernel shows only those that it got.
fn performance(initiators: &Path) -> Option<Performance> {
    let of = |file: &str| fs::read_to_string(initiators.join(file)).ok()?.trim().parse::<u64>().ok();
    let said = Performance {
        read_latency_ns: of("read_latency").unwrap_or(0),
        write_latency_ns: of("write_latency").unwrap_or(0),
        read_mib_s: of("read_bandwidth").unwrap_or(0),
        write_mib_s: of("write_bandwidth").unwrap_or(0),
    };
    (said != Performance::default()).then_some(said)
}

fn memory_tiers(directory: &Path) -> Vec<(u32, Vec<u32>)> {
    let tier = |name: &String| {
        let number = name.strip_prefix("memory_tier")?.parse().ok()?;
        let list = fs::read_to_string(directory.join(name).join("nodelist")).ok()?;
        Some((number, numbers(&list)?))
    };
    names_in(directory).iter().filter_map(tier).collect()
}

fn bytes_of(summary: &str, name: &str) -> u64 {
    let line = summary.lines().find(|line| line.contains(name));
    let kibibytes = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

fn free_bytes(summary: &str) -> u64 {
    let parts = ["MemFree:", "Active(file):", "Inactive(file):"];
    // Keeps "Inactive(file):" apart from "Active(file):".
    let of = |name: &str| bytes_of(summary, &format!(" {name}")).max(starting(summary, name));
    parts.into_iter().fold(0u64, |sum, name| sum.saturating_add(of(name)))
}

/// The bytes of a line that begins with its name, as in the machine's summary.
fn starting(summary: &str, name: &str) -> u64 {
    summary.lines().find(|line| line.starts_with(name)).map_or(0, |line| bytes_of(line, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Processors and memory on node 0, only memory on node 2, only processors on node 3.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (node, cpus, kib, distances) in
            [(0, "0-1,4\n", 2048, "10 40 20\n"), (2, "\n", 1024, "40 10 30\n"), (3, "2\n", 0, "")]
        {
            let path = format!("system/node/node{node}");
            write(root.path(), &format!("{path}/cpulist"), cpus);
            write(root.path(), &format!("{path}/distance"), distances);
            let summary = format!(
                "Node {node} MemTotal:   {kib} kB\nNode {node} MemFree: 100 kB\nNode {node} Active(file): 10 kB\nNode {node} Inactive(file): 1 kB\n"
            );
            write(root.path(), &format!("{path}/meminfo"), &summary);
        }
        write(root.path(), "system/node/online", "0-3");
        for (file, text) in
            [("read_latency", "300\n"), ("read_bandwidth", "30720\n"), ("write_latency", "x\n")]
        {
            write(root.path(), &format!("system/node/node2/access0/initiators/{file}"), text);
        }
        write(root.path(), "virtual/memory_tiering/memory_tier4/nodelist", "0\n");
        write(root.path(), "virtual/memory_tiering/memory_tier112/nodelist", "2\n");
        write(root.path(), "virtual/memory_tiering/power/nodelist", "0\n");
        root
    }

    #[test]
    fn nodes_of_the_kernels_form() {
        let root = machine();
        let nodes = nodes_below(root.path(), Path::new("/no/such/file"));
        let near = Node {
            node: 0,
            cpus: vec![0, 1, 4],
            bytes: 2 << 20,
            free_bytes: 111 << 10,
            distances: vec![10, 40, 20],
            performance: None,
            memory_tier: Some(4),
        };
        let far = Node {
            node: 2,
            cpus: vec![],
            bytes: 1 << 20,
            distances: vec![40, 10, 30],
            performance: Some(Performance {
                read_latency_ns: 300,
                read_mib_s: 30720,
                ..Performance::default()
            }),
            memory_tier: Some(112),
            ..near.clone()
        };
        assert_eq!(nodes, [near, far]);
    }

    #[test]
    fn a_machine_without_nodes_is_one_node() {
        let nodes = nodes_below(Path::new("/no/such/directory"), Path::new("/proc/meminfo"));
        assert!(
            nodes.len() == 1 && nodes[0].bytes > nodes[0].free_bytes && nodes[0].free_bytes > 0,
            "{nodes:?}"
        );
        assert!(!nodes[0].cpus.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_reason() {
        let root = machine();
        let there = nodes_below(root.path(), Path::new("/no/such/file"));
        let check = |nodes: &str, bytes| check_room_in(&there, &nodes.parse().unwrap(), bytes);
        check("0", 111 << 10).unwrap();
        check("0,2", 222 << 10).unwrap();
        let full = check("2", (111 << 10) + 1).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::OutOfMemory);
        assert!(full.to_string().contains("node 2 has 113664 bytes of memory free of 1048576"), "{full}");
        // The reported room does fit, on any number of nodes.
        let mut roomy = there.clone();
        roomy.iter_mut().for_each(|node| node.free_bytes = 100 << 20);
        for (nodes, fits) in [("0", 93), ("0,2", 187)] {
            let set = nodes.parse().unwrap();
            let error = check_room_in(&roomy, &set, u64::MAX).unwrap_err().to_string();
            assert!(error.contains(&format!("about {fits}MiB would fit")), "{error}");
            check_room_in(&roomy, &set, fits << 20).unwrap();
        }
        for absent in ["1", "0,3"] {
            let error = check(absent, 1).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert!(error.to_string().contains("does not exist; nodes with memory: 0, 2"), "{error}");
        }
    }

    #[test]
    fn lists_of_nodes_round_trip_and_others_are_refused() {
        for (text, nodes) in [("0", vec![0]), ("1,3-5", vec![1, 3, 4, 5]), (" 1023\n", vec![1023])] {
            let set: NodeSet = text.parse().unwrap();
            assert_eq!(set.iter().collect::<Vec<_>>(), nodes);
            assert_eq!(set.to_string().parse(), Ok(set.clone()));
            assert_eq!(set.len(), nodes.len());
        }
        for wrong in ["", " ", ",", "1,", "a", "-1", "1-", "2-1", "1024", "0-4294967295", "1;2", "\u{1b}"] {
            let error = wrong.parse::<NodeSet>().unwrap_err();
            assert!(!error.is_empty() && !error.contains('\u{1b}'), "{wrong}");
        }
    }
}
