//! Reads from memory execute no atomic read-modify-write, so readers never wait for each other.
//!
//! A child process runs a call instruction by instruction, and its parent checks each instruction
//! first. So locks, reference counts and the allocator are covered. A put shows that the check
//! works.
//!
//! With a middle tier of real memory (charges of simulated memory are shared), the same holds for
//! pages in DRAM. A page used in place in the middle tier adds one to a count per thread: one
//! instruction per page, and no other.
//!
//! The only test of its binary, so that no other thread holds a lock at the fork.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use libc::{SIGTRAP, SIGUSR1, SIGUSR2};
use terrace::{Builder, Db, MemoryDirectory, Mode, Table};

/// Bytes of the longest instruction, in whole words.
const CODE_BYTES: usize = 16;

/// Whether an instruction is an atomic read-modify-write: with a lock prefix, or an exchange with
/// memory.
fn is_atomic(code: &[u8; CODE_BYTES]) -> bool {
    let is_prefix =
        |byte: &u8| [0xf0, 0x66, 0x67, 0xf2, 0xf3, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65].contains(byte);
    let prefixes = code.iter().take_while(|byte| is_prefix(byte)).count();
    let (prefixes, rest) = code.split_at(prefixes);
    let rest = if rest.first().is_some_and(|byte| byte >> 4 == 4) { &rest[1..] } else { rest };
    let exchanges = matches!(rest, [0x86 | 0x87, operands, ..] if operands >> 6 != 3);
    prefixes.contains(&0xf0) || exchanges
}

fn atomic_instructions_are_told_from_others() {
    let is = |start: &[u8]| {
        let mut code = [0; CODE_BYTES];
        code[..start.len()].copy_from_slice(start);
        is_atomic(&code)
    };
    assert!(is(&[0xf0, 0x48, 0x0f, 0xc1, 0x07]), "lock xadd [rdi], rax");
    assert!(is(&[0x66, 0xf0, 0x0f, 0xb1, 0x0f]), "lock cmpxchg [rdi], cx");
    assert!(is(&[0xf0, 0x83, 0x0c, 0x24, 0x00]), "lock or [rsp], 0");
    assert!(is(&[0x48, 0x87, 0x07]) && is(&[0x86, 0x07]), "xchg [rdi], rax and al");
    assert!(!is(&[0x48, 0x87, 0xc8]), "xchg rax, rcx");
    assert!(!is(&[0x90]) && !is(&[0x48, 0x89, 0x07]) && !is(&[0x0f, 0xf0, 0x07]), "nop, mov, a load");
}

/// Starts or ends the parent's check.
fn signal(number: i32) {
    // SAFETY: a system call without memory. The tracing parent takes the signal away.
    unsafe { libc::raise(number) };
}

/// The calls of the child, in order.
const CALLS: [&str; 8] = [
    "nothing",
    "get",
    "get of nothing",
    "get of a long value",
    "get of a snapshot",
    "put",
    "get from DRAM above a middle tier",
    IN_PLACE,
];
const IN_PLACE: &str = "get in the middle tier";
/// Number of calls without a middle tier.
const TWO_TIERS: usize = 6;
/// Pages from the root of the table to a leaf.
const LEVELS: usize = 2;

fn builder() -> Builder {
    Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(8 << 20).mode(Mode::Inline)
}

/// A database whose pages stay in DRAM, or in a middle tier on node 0.
fn over_three_tiers(in_place: bool) -> terrace::Result<Db> {
    let policy = if in_place { "0,0,1,1" } else { "0,0,0,0" };
    let middle = "numa:0,8MiB".parse().expect("this is a middle tier");
    builder().middle(middle).policy(policy.parse().expect("this is a policy")).open("")
}

fn fill(db: &Db) -> terrace::Result<Table> {
    let table = db.create_table("t")?;
    for number in 0..2000u32 {
        table.put(number.to_be_bytes(), [1; 100])?;
    }
    Ok(table)
}

/// The child: makes every call once unchecked, to set up lazy state, and once checked.
fn child(calls: &[&str]) -> terrace::Result<()> {
    let db = builder().no_middle().open("")?;
    let table = fill(&db)?;
    let key = |number: u32| number.to_be_bytes();
    let mut tiers = Vec::new();
    for in_place in [false, true].into_iter().take(calls.len().saturating_sub(TWO_TIERS)) {
        let db = over_three_tiers(in_place)?;
        let table = fill(&db)?;
        tiers.push((db, table));
    }
    table.put(key(5000), [2; 1000])?;
    let snapshot = db.snapshot();
    for seen in [false, true] {
        for call in 0..calls.len() {
            // The parent checks from one signal to the next.
            if seen {
                signal(SIGUSR1);
            }
            let is_right = match call {
                0 => true,
                1 => table.get(key(777))?.is_some_and(|value| value == [1; 100]),
                2 => table.get(key(7777))?.is_none(),
                3 => table.get(key(5000))?.is_some_and(|value| value == [2; 1000]),
                4 => snapshot.get(&table, key(778))?.is_some_and(|value| value == [1; 100]),
                5 => table.put(key(777), [1; 100]).is_ok(),
                _ => tiers[call - TWO_TIERS].1.get(key(777))?.is_some_and(|value| value == [1; 100]),
            };
            if seen {
                signal(SIGUSR2);
            }
            assert!(is_right);
        }
    }
    for ((db, _), in_place) in tiers.iter().zip([0, 2 * LEVELS as u64]) {
        let looks = db.stats().middle.expect("it has a middle tier").reads_in_place;
        assert!(looks >= in_place && (looks == 0) == (in_place == 0), "{looks} looks in place");
    }
    Ok(())
}

/// Waits until the child stops; returns the signal, or the exit status if it has ended.
fn wait(child: i32) -> Result<i32, i32> {
    let mut status = 0;
    // SAFETY: `status` is this function's own.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFSTOPPED(status) { Ok(libc::WSTOPSIG(status)) } else { Err(status) }
}

/// Resumes the stopped child, for one instruction or until it stops.
fn go_on(child: i32, request: libc::c_uint) {
    // SAFETY: requests without memory, to a traced and stopped child.
    let outcome = unsafe { libc::ptrace(request, child, 0, 0) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
}

/// Instruction pointer of the stopped child.
fn instruction_at(child: i32) -> u64 {
    let mut registers = std::mem::MaybeUninit::<libc::user_regs_struct>::uninit();
    // SAFETY: the kernel fills the structure that this request is for.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, child, 0, registers.as_mut_ptr()), 0);
        registers.assume_init().rip
    }
}

/// The code at `address`.
fn code_at(child: i32, address: u64) -> [u8; CODE_BYTES] {
    let mut code = [0; CODE_BYTES];
    for (word, bytes) in code.chunks_exact_mut(8).enumerate() {
        // SAFETY: the word is the result; an invalid address gives an error and no word.
        let word = unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, child, address + 8 * word as u64, 0) };
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    code
}

/// Steps through one call; returns the number of instructions and the addresses of atomic ones.
fn trace(child: i32) -> (usize, Vec<u64>) {
    let (mut steps, mut atomic, mut known) = (0, Vec::new(), HashMap::new());
    loop {
        let at = instruction_at(child);
        if *known.entry(at).or_insert_with(|| is_atomic(&code_at(child, at))) {
            atomic.push(at);
        }
        go_on(child, libc::PTRACE_SINGLESTEP);
        steps += 1;
        match wait(child) {
            Ok(SIGTRAP) => {}
            Ok(SIGUSR2) => return (steps, atomic),
            other => panic!("the child was stopped by {other:?}"),
        }
    }
}

#[test]
fn a_get_from_memory_modifies_nothing_shared() {
    atomic_instructions_are_told_from_others();
    let calls = match over_three_tiers(true) {
        Ok(_) => &CALLS[..],
        Err(error) => {
            println!("left out, what is done in a middle tier: {error}");
            &CALLS[..TWO_TIERS]
        }
    };
    // SAFETY: the child uses only what it creates itself, and ends by `_exit`.
    let child = match unsafe { libc::fork() } {
        0 => {
            // SAFETY: a request without memory.
            let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == 0;
            let done =
                traced && std::panic::catch_unwind(|| self::child(calls)).is_ok_and(|done| done.is_ok());
            // SAFETY: ends the process.
            unsafe { libc::_exit(if done { 0 } else { 1 }) }
        }
        child => child,
    };
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let mut found = BTreeMap::new();
    for &call in calls {
        assert_eq!(wait(child), Ok(SIGUSR1), "before {call}: ptrace is not permitted, or the child failed");
        let (steps, atomic) = trace(child);
        println!("{call}: {steps} instructions, {} of them atomic", atomic.len());
        assert!(steps > if call == "nothing" { 0 } else { 200 }, "{call} was not seen");
        found.insert(call, atomic);
        go_on(child, libc::PTRACE_CONT);
    }
    // A failed child, or a mismatch of calls above, would have ended otherwise.
    assert_eq!(wait(child), Err(0));
    let atomic_put = found.remove("put").expect("it was called");
    assert!(atomic_put.len() > 3, "a put takes a latch, a lock and a slot in the log");
    if let Some(addresses) = found.remove(IN_PLACE) {
        assert_eq!(addresses.len(), LEVELS, "{IN_PLACE}, one for each page: {}", name(&addresses));
    }
    for (call, addresses) in found {
        // After a fork the addresses are valid in this process too.
        assert!(addresses.is_empty(), "{call}: {}", name(&addresses));
    }
}

/// Code addresses as file and offset, for addr2line.
fn name(addresses: &[u64]) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut named = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(offset), Some(file)) = (words.next(), words.nth(1), words.nth(2)) else {
            continue;
        };
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = range.split_once('-').map(|(start, end)| (number(start), number(end))).unwrap();
        for address in addresses.iter().filter(|address| (start..end).contains(address)) {
            named.push(format!("{file} {:#x}", address - start + number(offset)));
        }
    }
    named.join(", ")
}
