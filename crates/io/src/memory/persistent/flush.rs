//! Instructions that write lines of the processor's caches back to memory.
//!
//! `clwb` keeps the line in the cache, `clflushopt` drops it, and `clflush` also waits for each.
//! `sfence` orders the first two before later stores (Intel SDM, volume 2). On 64-bit ARM `dc cvap`
//! cleans a line to the point of persistence and `dsb` waits (ARMv8.2 DPB).
#![allow(unsafe_code)]

/// Bytes of a line, the unit that reaches the memory as a whole.
pub(crate) const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each kind of processor has its own")]
pub(crate) enum Flush {
    Clwb,
    Clflushopt,
    Clflush,
    DcCvap,
}

impl Flush {
    /// The best of this processor; `None` if none reaches persistent memory.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn detect() -> Option<Flush> {
        // Leaf 7 has the two newer ones (EBX bits 24 and 23). Every x86-64 processor has clflush.
        // SAFETY: every x86-64 processor has the instruction, which changes nothing.
        #[allow(unused_unsafe, reason = "newer compilers need no unsafe block")]
        let features = unsafe {
            use std::arch::x86_64::{__cpuid, __cpuid_count};
            if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 }
        };
        Some(match features {
            bits if bits >> 24 & 1 == 1 => Flush::Clwb,
            bits if bits >> 23 & 1 == 1 => Flush::Clflushopt,
            _ => Flush::Clflush,
        })
    }

    /// As above.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn detect() -> Option<Flush> {
        // SAFETY: reads a word that the kernel gave this process.
        let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
        (features & libc::HWCAP_DCPOP != 0).then_some(Flush::DcCvap)
    }

    /// As above.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub(crate) fn detect() -> Option<Flush> {
        None
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Flush::Clwb => "clwb",
            Flush::Clflushopt => "clflushopt",
            Flush::Clflush => "clflush",
            Flush::DcCvap => "dc cvap",
        }
    }

    /// Writes back the line at `address`.
    ///
    /// # Safety
    /// The address is mapped. `self` comes from [`Flush::detect`].
    #[inline]
    pub(super) unsafe fn line(self, address: *const u8) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise covers the address and the instruction. It changes no byte.
        // The compiler takes it for a use of memory, so no store moves across it.
        unsafe {
            match self {
                Flush::Clwb => {
                    std::arch::asm!("clwb [{}]", in(reg) address, options(nostack, preserves_flags))
                }
                Flush::Clflushopt => {
                    std::arch::asm!("clflushopt [{}]", in(reg) address, options(nostack, preserves_flags));
                }
                _ => std::arch::asm!("clflush [{}]", in(reg) address, options(nostack, preserves_flags)),
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above. `sys #3, c7, c12, #1` is `dc cvap`, which older assemblers refuse.
        unsafe {
            std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) address, options(nostack, preserves_flags));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = address;
    }

    /// Waits for the lines that this thread wrote back.
    #[inline]
    pub(crate) fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a fence changes nothing, and every x86-64 processor has it.
        unsafe {
            std::arch::asm!("sfence", options(nostack, preserves_flags));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a barrier changes nothing.
        unsafe {
            std::arch::asm!("dsb sy", options(nostack, preserves_flags));
        }
    }
}
