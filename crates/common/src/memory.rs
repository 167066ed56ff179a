//! Memory of a process, as the kernel counts it.

use std::fs;

/// Resident bytes of process `id`, or of this one; 0 if it has exited.
pub fn resident_bytes(id: Option<u32>) -> u64 {
    status(id, "VmRSS:")
}

/// Peak resident bytes of this process.
pub fn peak_resident_bytes() -> u64 {
    status(None, "VmHWM:")
}

fn status(id: Option<u32>, field: &str) -> u64 {
    let process = id.map_or_else(|| "self".to_owned(), |id| id.to_string());
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_touched_counts() {
        // Wide bounds, because other tests share this process. Touched memory stays resident while
        // held.
        let touched = std::hint::black_box(vec![1u8; 256 << 20]);
        let bounds = (240 << 20)..(1 << 40);
        assert!(bounds.contains(&resident_bytes(None)) && bounds.contains(&peak_resident_bytes()));
        assert!(bounds.contains(&resident_bytes(Some(std::process::id()))));
        drop(touched);
        assert!(peak_resident_bytes() >= bounds.start, "a peak stays");
        assert_eq!(resident_bytes(Some(u32::MAX)), 0);
    }
}
