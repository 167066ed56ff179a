//! Pages are known by their table or index, and what was asked for can be simulated.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{Model, Place, SCHEMA, change, journal_mode, random};
use rusqlite::Connection;
use terrace_block::trace::{Event, Trace};

/// The table or index of every page, as SQLite itself says, overflow pages included.
fn owners(db: &Connection) -> BTreeMap<u64, String> {
    let mut statement = db.prepare("select pageno, name from dbstat").expect("dbstat is there");
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))).expect("rows");
    rows.collect::<rusqlite::Result<_>>().expect("rows")
}

#[test]
fn a_trace_knows_the_tables() {
    for mode in ["delete", "wal"] {
        let place = Place::new();
        let trace = place.path().join("x.pgt");
        let mut db = place.cached_with(&format!("&trace={}", trace.display()));
        journal_mode(&db, mode);
        db.execute_batch(SCHEMA).expect("tables");
        db.execute_batch("create table \"a table\"(a primary key, b) without rowid").expect("a table");
        let (mut model, mut random) = (Model::new(), random(9));
        for _ in 0..30 {
            change(&mut db, &mut model, &mut random).expect("a change");
            let insert = "insert or replace into \"a table\" values (abs(random()) % 500, randomblob(300))";
            for _ in 0..10 {
                db.execute_batch(insert).expect("a row");
            }
        }
        db.query_row("pragma wal_checkpoint", [], |_| Ok(())).expect("a checkpoint");
        db.query_row("select sum(instr(value, x'00112233')) from t", [], |_| Ok(())).expect("a scan");
        db.query_row("select sum(length(b)) from \"a table\"", [], |_| Ok(())).expect("a scan");
        drop(db);
        let owners = owners(&place.plain());
        let (mut names, mut last) = (BTreeMap::new(), BTreeMap::new());
        let (mut requests, mut writes) = (0, 0);
        for event in Trace::open(&trace, None, 4096).expect("it is there") {
            match event.expect("it is well formed") {
                Event::Relation(relation) => {
                    names.insert(relation.number, relation.name);
                }
                Event::Request(request) => {
                    requests += 1;
                    writes += u32::from(request.write);
                    last.insert(request.block & 0xffff_ffff, request.relation.expect("a relation"));
                }
                Event::Query(query) => panic!("{query:?}"),
            }
        }
        assert!(requests > 100 && writes > 40 && writes < requests, "{mode}: {requests} requests");
        let expected: BTreeSet<_> = ["sqlite_schema", "t", "by_value", "a_table"].map(str::to_owned).into();
        let known: BTreeSet<_> = names.values().cloned().collect();
        assert!(known.is_superset(&expected), "{mode}: {known:?}");
        let agree = owners.iter().filter(|(page, owner)| {
            let name = last.get(page).and_then(|relation| names.get(relation));
            name.is_some_and(|name| *name == owner.replace(' ', "_"))
        });
        let (agree, all) = (agree.count(), owners.len());
        assert!(agree * 100 >= all * 98, "{mode}: {agree} of {all} pages are where SQLite says");
    }
}

#[test]
fn a_trace_without_tables_has_pages() {
    let place = Place::new();
    let trace = place.path().join("x.csv");
    let db = place.cached_with(&format!("&trace={}", trace.display()));
    db.execute_batch(SCHEMA).expect("tables");
    drop(db);
    let blocks: BTreeSet<u64> = Trace::open(&trace, None, 4096)
        .expect("it is there")
        .map(|event| match event.expect("it is well formed") {
            Event::Request(request) => request.block,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(blocks, BTreeSet::from([1, 2, 3]));
    assert!(
        Connection::open(place.uri(&format!("&trace={}", trace.display()))).is_err(),
        "it exists already"
    );
    assert!(Connection::open(place.uri("&trace=x.lis")).is_err(), "a format that is not written");
}
