//! Damage in the files: found, or without effect. Never a wrong answer, never a panic.
//!
//! A small database is made, its files are damaged in one place, and all of it is opened and read. What was
//! checkpointed must come back as it was, or an error says what is wrong. What was only in the log may be missing
//! from some point on, as after a power cut: a damaged last record cannot be told from one that was being written
//! when the power went. But what is there is the state after some whole commit, and never one older than the
//! superblock's own word for the end of the log.
//!
//! `TERRACE_FLIP_STRIDE` says how many bytes lie between two damaged ones; 1 damages every byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrace::{Db, Error, MemoryDirectory, Mode, Result};
use terrace_block::{AlignedBuffer, BlockDevice, Directory, OpenMode};

const PAGES: &str = "pages.terrace";
const LOG: &str = "log.terrace";
const PAGE_BYTES: usize = 4096;

type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// The two files.
#[derive(Clone)]
struct Files([Vec<u8>; 2]);

impl Files {
    fn of(directory: &MemoryDirectory) -> Files {
        Files([PAGES, LOG].map(|file| {
            let device = directory.open(file, OpenMode::Read).unwrap();
            let mut bytes = AlignedBuffer::zeroed(device.len() as usize);
            device.read_at(0, &mut bytes).unwrap();
            bytes.to_vec()
        }))
    }

    fn directory(&self) -> MemoryDirectory {
        let directory = MemoryDirectory::new();
        for (file, content) in [PAGES, LOG].into_iter().zip(&self.0) {
            let device = directory.open(file, OpenMode::CreateNew).unwrap();
            write(&*device, content);
        }
        directory
    }

    /// Everything in the database, if it says that it can tell.
    fn read(&self) -> Result<Content> {
        let db = open(&self.directory(), 1)?;
        let table = db.open_table("t")?;
        let found: Content = table.iter().collect::<Result<_>>()?;
        for (key, value) in &found {
            assert_eq!(table.get(key)?.as_ref(), Some(value), "a scan and a look-up differ");
        }
        Ok(found)
    }

    /// Opens and reads these files after `damage` and judges what comes of it. Whether it was found.
    fn is_found(&self, allowed: &[Content], damage: impl FnOnce(&mut Files)) -> bool {
        let mut damaged = self.clone();
        damage(&mut damaged);
        match damaged.read() {
            Ok(found) => {
                assert!(allowed.contains(&found), "{} entries, of no state there was", found.len());
                false
            }
            Err(Error::Corrupt { .. } | Error::NotADatabase { .. } | Error::Version { .. }) => true,
            Err(Error::TableNotFound(_)) if allowed.iter().any(Content::is_empty) => false,
            Err(error) => panic!("damage is reported as: {error}"),
        }
    }

    /// Every `stride`th byte of `file` changed in three ways.
    fn flip_all(&self, allowed: &[Content], file: usize, stride: usize) {
        let (mut cases, mut found) = (0, 0);
        // Bytes of all places within a page, not always the same ones.
        for at in (0..self.0[file].len()).step_by(stride) {
            let old = self.0[file][at];
            let flipped = old ^ 1 << (at / stride % 8);
            for new in [flipped, 0x00, 0xff] {
                if new != old {
                    cases += 1;
                    found += u64::from(self.is_found(allowed, |files| files.0[file][at] = new));
                }
            }
        }
        println!(
            "{}: {cases} bytes changed, found in {found}, without effect in the others",
            [PAGES, LOG][file]
        );
        assert!(found > 0);
    }
}

fn write(device: &dyn BlockDevice, content: &[u8]) {
    device.set_len(content.len() as u64).unwrap();
    let mut bytes = AlignedBuffer::zeroed(content.len());
    bytes.copy_from_slice(content);
    device.write_at(0, &bytes).unwrap();
}

fn open(directory: &MemoryDirectory, seed: u64) -> Result<Db> {
    let builder =
        Db::builder().directory(Arc::new(directory.clone())).dram(1 << 20).page_size(PAGE_BYTES as u64);
    builder.log_max(256 << 10).mode(Mode::Inline).seed(seed).open("")
}

/// A database that was closed, and what is in it.
fn closed(seed: u64) -> (Files, Content) {
    let directory = MemoryDirectory::new();
    let db = open(&directory, seed).unwrap();
    let table = db.create_table("t").unwrap();
    let mut content = Content::new();
    for number in 0..200u32 {
        let value = vec![number as u8 ^ seed as u8; if number == 77 { 9000 } else { 60 }];
        table.put(number.to_be_bytes(), &value).unwrap();
        content.insert(number.to_be_bytes().to_vec(), value);
    }
    db.close().unwrap();
    (Files::of(&directory), content)
}

/// A database that was checkpointed, changed and killed; its states from the checkpoint on.
fn killed() -> (Files, Vec<Content>) {
    let (files, mut content) = closed(1);
    let directory = files.directory();
    let db = open(&directory, 1).unwrap();
    let table = db.open_table("t").unwrap();
    let mut states = vec![content.clone()];
    for number in 0..40u32 {
        let (key, value) = ((number * 5).to_be_bytes(), vec![number as u8; 100]);
        table.put(key, &value).unwrap();
        content.insert(key.to_vec(), value);
        states.push(content.clone());
    }
    let files = Files::of(&directory);
    assert_eq!(files.read().unwrap(), content);
    (files, states)
}

fn stride(default: usize) -> usize {
    std::env::var("TERRACE_FLIP_STRIDE").map_or(default, |text| text.parse().unwrap())
}

#[test]
fn no_changed_byte_of_the_page_file_goes_wrong() {
    let (files, content) = closed(1);
    files.flip_all(&[content], 0, stride(1021));
}

#[test]
fn no_changed_byte_of_the_log_goes_wrong() {
    let (files, states) = killed();
    files.flip_all(&states, 1, stride(251));
    files.flip_all(&states, 0, stride(2039));
}

#[test]
fn swapped_pages_are_found() {
    let (files, content) = closed(1);
    let pages: Vec<usize> = (32 << 10..files.0[0].len()).step_by(PAGE_BYTES).collect();
    let used = |at: &usize| files.0[0][*at..*at + PAGE_BYTES].iter().any(|&byte| byte != 0);
    let pages: Vec<usize> = pages.into_iter().filter(used).collect();
    let mut found = 0;
    for pair in pages.windows(2) {
        found += usize::from(files.is_found(std::slice::from_ref(&content), |files| {
            let (low, high) = files.0[0].split_at_mut(pair[1]);
            low[pair[0]..pair[0] + PAGE_BYTES].swap_with_slice(&mut high[..PAGE_BYTES]);
        }));
    }
    println!("{found} of {} swaps", pages.len() - 1);
    assert!(found > 5);
}

#[test]
fn a_write_that_was_lost_is_found() {
    let directory = closed(1).0.directory();
    let db = open(&directory, 1).unwrap();
    let table = db.open_table("t").unwrap();
    let mut olds = Vec::new();
    for round in 0..120u8 {
        for number in 0..200u32 {
            table.put(number.to_be_bytes(), [round; 60]).unwrap();
        }
        db.checkpoint().unwrap();
        olds.push(Files::of(&directory));
    }
    let content: Content = table.iter().collect::<Result<_>>().unwrap();
    drop(table);
    db.close().unwrap();
    let new = Files::of(&directory);
    let (mut tried, mut found) = (0, 0);
    for at in (32 << 10..olds[0].0[0].len()).step_by(PAGE_BYTES) {
        let page = at..at + PAGE_BYTES;
        // What the place held before it was written last.
        let stale =
            olds.iter().rev().map(|old| &old.0[0][page.clone()]).find(|old| **old != new.0[0][page.clone()]);
        let Some(stale) = stale else { continue };
        tried += 1;
        found += usize::from(new.is_found(std::slice::from_ref(&content), |files| {
            files.0[0][page].copy_from_slice(stale);
        }));
    }
    println!("{found} of {tried} stale images are of pages in use");
    assert!(found > 3);
}

#[test]
fn short_files_are_refused() {
    let (files, states) = killed();
    for file in [0, 1] {
        let whole = files.0[file].len();
        for left in [0, 4096, 16 << 10, 32 << 10, whole / 2, whole - PAGE_BYTES] {
            let found = files.is_found(&[], |files| files.0[file].truncate(left));
            assert!(found, "{left} of {whole} bytes of file {file}");
        }
    }
    assert!(!files.is_found(&states[40..], |_| {}));
}

#[test]
fn the_files_of_another_database_are_refused() {
    let ((one, content), (two, other)) = (closed(1), closed(2));
    assert_ne!(content, other);
    assert!(one.is_found(&[], |files| files.0[1] = two.0[1].clone()));
    assert!(one.is_found(&[], |files| files.0[0] = two.0[0].clone()));
}
