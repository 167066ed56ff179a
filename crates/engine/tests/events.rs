//! Events that a database reports to `tracing`: one per change of state, none for single
//! operations.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::{Arc, Once};

use terrace::{Builder, Db, Durability, Error, MemoryDirectory, Mode, SimulatedDisk};
use terrace_io::{CallKind, FaultPlan};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event: level, message, and fields as `name=value`.
#[derive(Clone, Debug)]
struct Told {
    level: Level,
    message: String,
    fields: Vec<String>,
}

thread_local! {
    /// The events of this thread, while it collects them.
    static COLLECTED: RefCell<Option<Vec<Told>>> = const { RefCell::new(None) };
}

/// Collects the events of this crate.
struct Collects;

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push(format!("{name}={value:?}")),
        }
    }
}

impl Subscriber for Collects {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        about.target().starts_with("terrace::")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = Told { level: *event.metadata().level(), message: String::new(), fields: Vec::new() };
        event.record(&mut told);
        COLLECTED.with_borrow_mut(|collected| collected.iter_mut().for_each(|all| all.push(told.clone())));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Lets `tracing` ask [`Collects`] about all events. Call it before a test's first event:
/// `tracing` remembers for the whole process whether anybody wants an event, and whoever reports it
/// first decides.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Collects).expect("there is no other"));
}

/// Events of this thread during `work`.
fn told(work: impl FnOnce()) -> Vec<Told> {
    listen();
    let outer = COLLECTED.replace(Some(Vec::new()));
    work();
    COLLECTED.replace(outer).expect("it was collecting")
}

/// Messages more important than `Level::DEBUG`.
fn messages(told: &[Told]) -> Vec<&str> {
    let above = told.iter().filter(|told| told.level < Level::DEBUG);
    above.map(|told| told.message.as_str()).collect()
}

fn builder(disk: &SimulatedDisk) -> Builder {
    listen();
    let builder = Db::builder().directory(Arc::new(disk.clone())).dram(1 << 20).log_max(256 << 10);
    builder.mode(Mode::Inline).seed(1)
}

#[test]
fn opening_and_closing_are_told_and_operations_are_not() {
    let disk = SimulatedDisk::new(1);
    let found = told(|| {
        let db = builder(&disk).open("").unwrap();
        let table = db.create_table("t").unwrap();
        for number in 0..20u32 {
            table.put(number.to_be_bytes(), "v").unwrap();
        }
        db.close().unwrap();
        drop(table);
        drop(builder(&disk).read_only(true).open("").unwrap());
    });
    assert_eq!(messages(&found), ["opened", "closed", "opened", "closed"], "{found:?}");
    let fields =
        |at: usize| found.iter().filter(|told| told.level < Level::DEBUG).nth(at).unwrap().fields.join(" ");
    assert!(fields(0).contains("read_only=false") && fields(2).contains("read_only=true"), "{found:?}");
    assert!(fields(1).contains("cleanly=true"), "{found:?}");
}

#[test]
fn settings_that_an_existing_database_does_not_take_are_told_of() {
    let disk = SimulatedDisk::new(1);
    let warned = |change: fn(Builder) -> Builder| {
        let found = told(|| change(builder(&disk).page_size(4096)).open("").unwrap().close().unwrap());
        let warnings = found.iter().filter(|told| told.level == Level::WARN);
        Vec::from_iter(warnings.map(|told| format!("{} {}", told.message, told.fields.join(" "))))
    };
    for _ in 0..2 {
        assert_eq!(warned(|builder| builder), [""; 0]);
    }
    let keeps = "is not used: the database keeps its own";
    let asked: [fn(Builder) -> Builder; 2] = [
        |builder| builder.page_size(8192).log_max(1 << 20),
        |builder| builder.page_size(8192).log_max(1 << 20).read_only(true),
    ];
    for change in asked {
        assert_eq!(
            warned(change),
            [
                format!("page_size {keeps} asked=8192 page_bytes=4096"),
                format!("log_max {keeps} asked=1048576 log_bytes=262144")
            ]
        );
    }
}

#[test]
fn pages_that_do_not_go_to_the_middle_tier_are_told_of_when_there_are_any() {
    let disk = SimulatedDisk::new(1);
    let open = || {
        let tiers = builder(&disk).dram(16 << 20).page_size_max(16 << 10).log_max(1 << 20);
        // One frame of the own size, and none of four times as many bytes beside it.
        tiers.middle("simulated:dram,16KiB".parse().unwrap()).open("").unwrap()
    };
    let warned = |found: &[Told]| {
        let warnings = found.iter().filter(|told| told.level == Level::WARN);
        Vec::from_iter(warnings.map(|told| format!("{} {}", told.message, told.fields.join(" "))))
    };
    let said = "pages of this size do not go to the middle tier page_bytes=16384 middle_bytes=16384";
    let found = told(|| {
        let db = open();
        db.create_table("own").unwrap();
        assert!(warned(&told(|| drop(db.create_table("also own").unwrap()))).is_empty());
        db.create_table_with("large", &terrace::TableOptions::new().page_size(16 << 10)).unwrap();
        db.create_table_with("larger", &terrace::TableOptions::new().page_size(16 << 10)).unwrap();
        db.close().unwrap();
    });
    assert_eq!(warned(&found), [said], "{found:?}");
    let found = told(|| open().close().unwrap());
    assert_eq!(warned(&found), [said], "{found:?}");
}

#[test]
fn recovery_says_what_it_did() {
    let disk = SimulatedDisk::new(1);
    let db = builder(&disk).open("").unwrap();
    let table = db.create_table("t").unwrap();
    table.put("k", "v").unwrap();
    let left = disk.killed();
    let mut stats = None;
    let found = told(|| {
        let db = builder(&left).open("").unwrap();
        stats = Some(db.stats());
        std::mem::forget(db);
    });
    assert_eq!(messages(&found), ["recovered", "opened"], "{found:?}");
    let stats = stats.unwrap();
    assert!(stats.changes_redone > 0);
    assert!(found[0].fields.contains(&format!("changes_redone={}", stats.changes_redone)), "{found:?}");
    assert!(found[0].fields.contains(&"losers_undone=0".to_owned()), "{found:?}");
}

#[test]
fn checkpoints_and_cuts_are_told_at_debug() {
    let disk = SimulatedDisk::new(1);
    let db = builder(&disk).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let found = told(|| {
        for number in 0..2000u32 {
            table.put(number.to_be_bytes(), [1; 200]).unwrap();
        }
    });
    assert!(messages(&found).is_empty(), "{found:?}");
    for message in ["checkpoint", "log cut"] {
        let count = found.iter().filter(|told| told.message == message).count();
        assert!((1..200).contains(&count), "{count} times {message}");
    }
}

#[test]
fn a_failure_is_told_once_and_named_again_by_nothing_else() {
    let disk = SimulatedDisk::new(1);
    let db = builder(&disk).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let found = told(|| {
        disk.fail(FaultPlan::once(CallKind::WriteThrough, 1, libc::EIO));
        for number in 0..5u32 {
            assert!(table.put(number.to_be_bytes(), "v").is_err());
        }
        drop(table);
        assert!(matches!(db.close(), Err(Error::Poisoned { .. })));
    });
    assert_eq!(messages(&found), ["poisoned", "closed"], "{found:?}");
    assert_eq!(found[0].level, Level::ERROR);
    assert!(found.last().unwrap().fields.contains(&"cleanly=false".to_owned()), "{found:?}");
}

#[test]
fn a_full_disk_is_told_when_it_is_full_and_when_there_is_space() {
    let disk = SimulatedDisk::new(1);
    let db = builder(&disk).durability(Durability::Buffered).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let found = told(|| {
        disk.set_capacity(4 << 20);
        let mut refused = 0;
        for number in 0.. {
            match table.put(u32::to_be_bytes(number), [1; 1000]) {
                Ok(()) => {}
                Err(Error::Full { .. }) if refused < 10 => refused += 1,
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        disk.set_capacity(u64::MAX);
        for number in 0..2000u32 {
            table.put((number + 1_000_000).to_be_bytes(), [1; 1000]).unwrap();
        }
    });
    assert_eq!(messages(&found), ["full", "space again"], "{found:?}");
}

#[test]
fn snapshots_given_up_are_told() {
    listen();
    let db = Db::builder().directory(Arc::new(MemoryDirectory::new())).dram(2 << 20).mode(Mode::Inline);
    let db = db.old_version_bytes_max(64 << 10).open("").unwrap();
    let table = db.create_table("t").unwrap();
    let snapshot = db.snapshot();
    let found = told(|| {
        for number in 0..2000u32 {
            table.put((number % 100).to_be_bytes(), [1; 500]).unwrap();
        }
    });
    assert!(matches!(snapshot.get(&table, "k"), Err(Error::SnapshotTooOld)));
    assert_eq!(messages(&found), ["snapshots given up"], "{found:?}");
    assert!(found.iter().any(|told| told.fields.contains(&"reason=\"memory\"".to_owned())), "{found:?}");
}
