//! The contract of directories and devices, for the kinds in the test program above.

use std::io::ErrorKind;

use terrace_io::{AlignedBuffer, BlockDevice, LockError, OpenMode, Read, Write};

use super::{on_every_device, on_every_directory};

fn filled(length: usize, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length);
    buffer.fill(byte);
    buffer
}

fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> AlignedBuffer {
    let mut buffer = filled(length, 0xee);
    device.read_at(offset, &mut buffer).unwrap();
    buffer
}

fn holds(bytes: &[u8], byte: u8) -> bool {
    bytes.iter().all(|&other| other == byte)
}

#[test]
fn what_was_written_is_read_back_by_every_handle() {
    on_every_directory(|directory| {
        let device = directory.open("pages", OpenMode::CreateNew).unwrap();
        device.set_len(64 * 4096).unwrap();
        device.write_at(4096, &filled(8192, 7)).unwrap();
        device.write_through_at(16384, &filled(4096, 8)).unwrap();
        device.sync().unwrap();
        let other = directory.open("pages", OpenMode::Read).unwrap();
        assert_eq!(other.len(), 64 * 4096);
        for device in [&device, &other] {
            assert!(holds(&read(&**device, 0, 4096), 0));
            assert!(holds(&read(&**device, 4096, 8192), 7));
            assert!(holds(&read(&**device, 12288, 4096), 0));
            assert!(holds(&read(&**device, 16384, 4096), 8));
        }
    });
}

#[test]
fn a_batch_does_what_its_single_calls_would() {
    on_every_device(|device| {
        let pages: Vec<_> = (0..200u8).map(|byte| filled(4096, byte)).collect();
        let writes: Vec<_> =
            pages.iter().enumerate().map(|(page, bytes)| Write::new(page as u64 * 4096, bytes)).collect();
        device.write_batch(&writes).unwrap();
        let mut buffers = vec![filled(4096, 0xee); 200];
        let mut reads: Vec<_> = buffers
            .iter_mut()
            .enumerate()
            .rev()
            .map(|(page, buffer)| Read::new(page as u64 * 4096, buffer))
            .collect();
        device.read_batch(&mut reads);
        assert!(reads.iter().all(|read| read.result.is_ok()), "{reads:?}");
        for (byte, buffer) in buffers.iter().enumerate() {
            assert!(holds(buffer, byte as u8), "page {byte}");
        }
    });
}

#[test]
fn each_read_of_a_batch_has_its_own_result() {
    on_every_device(|device| {
        device.write_at(0, &filled(8192, 3)).unwrap();
        let mut buffers = vec![AlignedBuffer::zeroed(4096); 4];
        let [first, beyond, misaligned, last] = &mut buffers[..] else { unreachable!() };
        let mut reads = [
            Read::new(0, first),
            Read::new(1 << 20, beyond),
            Read::new(100, misaligned),
            Read::new(4096, last),
        ];
        device.read_batch(&mut reads);
        let kinds = reads.map(|read| read.result.err().map(|error| error.kind()));
        assert_eq!(kinds, [None, Some(ErrorKind::UnexpectedEof), Some(ErrorKind::InvalidInput), None]);
        assert!(holds(&buffers[0], 3) && holds(&buffers[3], 3));
    });
}

#[test]
fn the_first_error_of_a_batch_of_writes_is_reported_and_the_others_are_done() {
    on_every_device(|device| {
        let page = filled(4096, 5);
        let writes = [Write::new(0, &page), Write::new(1 << 20, &page), Write::new(4096, &page)];
        let error = device.write_batch(&writes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("at 1048576"), "{error}");
        assert!(holds(&read(device, 0, 8192), 5));
        assert_eq!(device.len(), 1 << 20);
    });
}

#[test]
fn empty_transfers_and_batches_succeed() {
    on_every_device(|device| {
        device.read_at(0, &mut []).unwrap();
        device.write_at(0, &[]).unwrap();
        device.write_through_at(0, &[]).unwrap();
        device.write_batch(&[]).unwrap();
        device.read_batch(&mut []);
    });
}

#[test]
fn misaligned_transfers_are_refused_and_the_requirement_named() {
    on_every_device(|device| {
        let mut buffer = AlignedBuffer::zeroed(3 * 4096);
        let alignment = device.alignment();
        let cases = [("offset", 8, 0..4096), ("length", 0, 0..100), ("buffer address", 0, 8..4096 + 8)];
        for (what, offset, range) in cases {
            let errors = [
                device.read_at(offset, &mut buffer[range.clone()]).unwrap_err(),
                device.write_at(offset, &buffer[range.clone()]).unwrap_err(),
                device.write_through_at(offset, &buffer[range.clone()]).unwrap_err(),
                device.write_batch(&[Write::new(offset, &buffer[range.clone()])]).unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                let message = error.to_string();
                assert!(message.contains(what) && message.contains(&alignment.to_string()), "{message}");
                assert!(message.contains(device.name()), "{message}");
            }
        }
    });
}

#[test]
fn reads_past_the_end_are_errors_and_writes_never_lengthen() {
    on_every_device(|device| {
        let mut buffer = AlignedBuffer::zeroed(8192);
        for offset in [1 << 20, (1 << 20) - 4096, 1 << 40, u64::MAX - 4095] {
            let error = device.read_at(offset, &mut buffer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
            assert_eq!(device.write_at(offset, &buffer).unwrap_err().kind(), ErrorKind::InvalidInput);
            assert_eq!(device.write_through_at(offset, &buffer).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(device.len(), 1 << 20);
    });
}

#[test]
fn a_length_in_the_midst_of_a_block_cuts_off_a_read() {
    on_every_device(|device| {
        device.set_len(4096 + 100).unwrap();
        assert_eq!(device.len(), 4196);
        assert!(holds(&read(device, 0, 4096), 0));
        let mut buffer = AlignedBuffer::zeroed(8192);
        assert_eq!(device.read_at(0, &mut buffer).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let mut other = AlignedBuffer::zeroed(4096);
        let mut reads = [Read::new(4096, &mut buffer[..4096]), Read::new(0, &mut other)];
        device.read_batch(&mut reads);
        assert_eq!(reads[0].result.as_ref().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(reads[1].result.is_ok());
    });
}

#[test]
fn what_was_cut_off_reads_as_zeros_after_growing() {
    on_every_device(|device| {
        device.write_at(0, &filled(16384, 9)).unwrap();
        device.set_len(8192).unwrap();
        device.set_len(1 << 20).unwrap();
        assert!(holds(&read(device, 0, 8192), 9));
        assert!(holds(&read(device, 8192, 8192), 0));
    });
}

#[test]
fn an_absurd_length_is_refused_and_changes_nothing() {
    on_every_device(|device| {
        device.set_len(u64::MAX).unwrap_err();
        device.set_len(1 << 60).unwrap_err();
        assert_eq!(device.len(), 1 << 20);
    });
}

#[test]
fn a_device_opened_for_reading_refuses_changes() {
    on_every_directory(|directory| {
        directory.open("pages", OpenMode::CreateNew).unwrap().set_len(8192).unwrap();
        let device = directory.open("pages", OpenMode::Read).unwrap();
        let page = filled(4096, 1);
        let refusals = [
            device.write_at(0, &page),
            device.write_through_at(0, &page),
            device.write_batch(&[Write::new(0, &page), Write::new(4096, &page)]),
            device.set_len(4096),
        ];
        for refusal in refusals {
            assert_eq!(refusal.unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        assert!(holds(&read(&*device, 0, 8192), 0));
    });
}

#[test]
fn threads_share_a_device() {
    on_every_device(|device| {
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                scope.spawn(move || {
                    for round in 0..10u8 {
                        let (page, base) = (filled(4096, round ^ thread as u8), thread * 65536);
                        let writes: Vec<_> = (0..16).map(|at| Write::new(base + at * 4096, &page)).collect();
                        device.write_batch(&writes).unwrap();
                        assert!(holds(&read(device, base, 65536), round ^ thread as u8));
                    }
                });
            }
        });
    });
}

#[test]
fn names_come_and_go_and_open_devices_outlive_them() {
    on_every_directory(|directory| {
        let missing = directory.open("a", OpenMode::Write).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert_eq!(directory.open("a", OpenMode::Read).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!directory.exists("a").unwrap());

        let device = directory.open("a", OpenMode::CreateNew).unwrap();
        assert_eq!(directory.open("a", OpenMode::CreateNew).unwrap_err().kind(), ErrorKind::AlreadyExists);
        device.set_len(4096).unwrap();
        device.write_at(0, &filled(4096, 4)).unwrap();

        directory.open("b", OpenMode::CreateNew).unwrap().set_len(8192).unwrap();
        directory.rename("a", "b").unwrap();
        assert!(!directory.exists("a").unwrap() && directory.exists("b").unwrap());
        assert_eq!(directory.open("b", OpenMode::Read).unwrap().len(), 4096, "b was replaced");
        assert_eq!(directory.rename("a", "c").unwrap_err().kind(), ErrorKind::NotFound);

        directory.remove("b").unwrap();
        assert_eq!(directory.remove("b").unwrap_err().kind(), ErrorKind::NotFound);
        directory.sync().unwrap();
        assert!(holds(&read(&*device, 0, 4096), 4), "still open");
    });
}

#[test]
fn a_name_is_never_a_path() {
    on_every_directory(|directory| {
        for name in ["", ".", "..", "a/b", "/a", "../a", "a\0b"] {
            let errors = [
                directory.open(name, OpenMode::CreateNew).map(drop).unwrap_err(),
                directory.exists(name).map(drop).unwrap_err(),
                directory.remove(name).unwrap_err(),
                directory.rename(name, "a").unwrap_err(),
                directory.rename("a", name).unwrap_err(),
            ];
            assert!(
                errors.iter().all(|error| error.kind() == ErrorKind::InvalidInput),
                "{name:?}: {errors:?}"
            );
            assert!(matches!(directory.lock(name), Err(LockError::Io(_))));
        }
    });
}

#[test]
fn a_lock_is_granted_once_and_again_when_dropped() {
    on_every_directory(|directory| {
        let held = directory.lock("lock").unwrap();
        match directory.lock("lock").err().unwrap() {
            LockError::Busy { owner_process } => assert_eq!(owner_process, Some(std::process::id())),
            LockError::Io(error) => panic!("{error}"),
        }
        drop(held);
        drop(directory.lock("lock").unwrap());
    });
}
