//! Pages are known by table or index, and traces can be simulated.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Folder, Model, SCHEMA, Seed, change, content, journal_mode, random, stat, stats};
use rand::RngExt;
use rusqlite::Connection;
use terrace_cache::trace::{Event, Trace};

/// Table or index of every page, by SQLite itself, with overflow pages.
fn owners(db: &Connection) -> BTreeMap<u64, String> {
    let mut statement = db.prepare("select pageno, name from dbstat").expect("dbstat is there");
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))).expect("rows");
    rows.collect::<rusqlite::Result<_>>().expect("rows")
}

#[test]
fn a_trace_knows_the_tables() {
    for mode in ["delete", "wal"] {
        let folder = Folder::new();
        let trace = folder.path().join("x.pgt");
        let mut db = folder.cached_with(&format!("&trace={}", trace.display()));
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
        db.query_row("/* a join */ select count(*) from t join \"a table\" on a = id", [], |_| Ok(()))
            .expect("a join");
        db.query_row("select sum(instr(value, x'00112233')) from t", [], |_| Ok(())).expect("a scan");
        db.query_row("select sum(length(b)) from \"a table\"", [], |_| Ok(())).expect("a scan");
        drop(db);
        let owners = owners(&folder.plain());
        let (mut names, mut last) = (BTreeMap::new(), BTreeMap::new());
        let (mut requests, mut writes, mut queries) = (0, 0, 0);
        let (mut named_queries, mut of_a_query) = (BTreeMap::new(), 0);
        for event in Trace::open(&trace, None, 4096).expect("it is there") {
            match event.expect("it is well formed") {
                Event::Relation(relation) => {
                    names.insert(relation.number, relation.name);
                }
                Event::Request(request) => {
                    requests += 1;
                    writes += u32::from(request.write);
                    of_a_query += u32::from(request.query.is_some_and(|query| query <= queries));
                    last.insert(request.block & 0xffff_ffff, request.relation.expect("a relation"));
                }
                Event::Query(query) => {
                    assert_eq!(query.number, queries + 1);
                    queries = query.number;
                    named_queries.insert(query.template.clone(), query.relations.clone());
                }
            }
        }
        assert!(requests > 100 && writes > 40 && writes < requests, "{mode}: {requests} requests");
        let expected: BTreeSet<_> = ["sqlite_schema", "t", "by_value", "a_table"].map(str::to_owned).into();
        let known: BTreeSet<_> = names.values().cloned().collect();
        assert!(known.is_superset(&expected), "{mode}: {known:?}");
        // The checkpoint at close belongs to no query.
        assert!(of_a_query * 10 >= requests * 8, "{mode}: {of_a_query} of {requests} requests are a query's");
        let of_join = named_queries.get("a_join").expect("the comment is its name");
        let of_join: BTreeSet<_> = of_join.iter().map(|relation| names[relation].as_str()).collect();
        let small = of_join.contains("t") || of_join.contains("by_value");
        assert!(small && of_join.contains("a_table") && of_join.len() == 2, "{mode}: {of_join:?}");
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
    let folder = Folder::new();
    let trace = folder.path().join("x.csv");
    let db = folder.cached_with(&format!("&trace={}", trace.display()));
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
        Connection::open(folder.uri(&format!("&trace={}", trace.display()))).is_err(),
        "it exists already"
    );
    assert!(Connection::open(folder.uri("&trace=x.lis")).is_err(), "a format that is not written");
}

#[test]
fn a_policy_is_told_of_queries() {
    let folder = Folder::new();
    let told = |more: &str| {
        let db = folder.cached_with(more);
        db.execute_batch(SCHEMA).expect("tables");
        let before = queries(&db);
        let mut statement = db.prepare("select id from t where id = ?").expect("a statement");
        for id in 0..5 {
            assert!(!statement.exists([id]).expect("it runs"));
        }
        drop(statement);
        before.map(|before| queries(&db).expect("they are counted") - before)
    };
    assert_eq!(told("&block_cache_policy=heuristicdb"), Some(6), "five, and the pragma that counts");
    assert_eq!(told("&block_cache_policy=heuristicdb&block_cache_hints=off"), None);
    assert_eq!(told("&block_cache_policy=auto"), Some(6), "it has a candidate that would use it");
    assert_eq!(told("&block_cache_policy=lru"), None, "no policy that would use it");
    assert_eq!(told("&block_cache_policy=nvcache"), None, "a preset by its name");
    assert!(Connection::open(folder.uri("&block_cache_hints=maybe")).is_err());
}

#[test]
fn the_statistics_tell_tables_and_reasons_apart() {
    let folder = Folder::new();
    // A file in the page cache would be faster than the cache, which would step aside.
    let db = folder.cached_with("&latency_us=100&time=counted&block_cache_policy=probability:0.5%2bsieve");
    db.execute_batch(SCHEMA).expect("tables");
    db.execute_batch(
        "create table \"a \"\" b\"(c);
         with recursive n(a) as (select 1 union all select a + 1 from n where a < 2000)
         insert into t select a, cast(printf('%0500d', a) as blob) from n;
         insert into \"a \"\" b\" select value from t",
    )
    .expect("rows");
    for _ in 0..3 {
        assert_eq!(content(&db).expect("rows").len(), 2000);
    }
    let told = stats(&db);
    assert!(told.contains(r#""policy":"probability:0.5+sieve""#), "{told}");
    assert!(stat(&db, "below") >= 0.0 && stat(&db, "damaged") == 0.0);
    let bypasses = told.split_once(r#""bypasses":{"policy":"#).expect("reasons").1;
    let refused: u64 = bypasses.split(',').next().expect("a number").parse().expect("a number");
    assert!(refused > 100, "{told}");
    // The table, its index, and a name that needs escapes.
    for of in [r#""name":"t","is_index":false"#, r#""name":"by_value","is_index":true"#, r#""name":"a \" b""#]
    {
        assert!(told.contains(of), "no {of} in {told}");
    }
    let relations = told.split_once(r#""relations":["#).expect("relations").1;
    let table = relations.split_once(r#""name":"t""#).expect("the table").1;
    let hits = table.split_once(r#""hits":"#).expect("hits").1.split(',').next().expect("a number");
    assert!(hits.parse::<u64>().expect("a number") > 100, "{told}");
}

/// Runs Zipf point selects (theta 0.9) with a cache of a fifth of the file.
///
/// Returns hits, including those that the slow disk served, and admissions.
fn point_selects(policy: &str, hints: &str, seed: u64) -> (f64, f64) {
    const ROWS: i64 = 8000;
    let folder = Folder::new();
    folder
        .plain()
        .execute_batch(&format!(
            "create table t(id integer primary key, value blob);
             with recursive n(a) as (select 1 union all select a + 1 from n where a < {ROWS})
             insert into t select a, zeroblob(1000) from n"
        ))
        .expect("rows");
    let file = std::fs::metadata(folder.database()).expect("a file").len();
    // A file in the page cache would be faster than the cache, which would step aside.
    let more = format!("&latency_us=100&time=counted&block_cache_policy={policy}&block_cache_hints={hints}");
    let size = format!("block_cache_size={}KiB", file / 5 / 1024);
    let uri = folder.uri(&more).replace("block_cache_size=4MiB", &size);
    let db = Connection::open(uri).expect("it opens");
    db.execute_batch("pragma cache_size = 10").expect("a pragma");
    let mut statement = db.prepare("select length(value) from t where id = ?").expect("a statement");
    let mut random = random(seed);
    for _ in 0..8000 {
        let rank = (random.random::<f64>().powf(1.0 / (1.0 - 0.9)) * ROWS as f64) as i64;
        // Scatters the hot rows.
        let id = 1 + rank * 4999 % ROWS;
        statement.query_row([id], |row| row.get::<_, i64>(0)).expect("a row");
    }
    drop(statement);
    (stat(&db, "hits") + stat(&db, "below"), stat(&db, "admissions"))
}

#[test]
fn hints_of_short_statements_do_not_empty_the_cache() {
    for (policy, seed) in [("heuristicdb", 1), ("heuristicdb-eager", 2)] {
        let _seed = Seed(seed);
        let (without, _) = point_selects(policy, "off", seed);
        let (with, admissions) = point_selects(policy, "on", seed);
        assert!(50.0 * with > 49.0 * without, "{policy}: {with} hits, {without} without hints");
        assert!(3.0 * admissions < with, "{policy}: {admissions} admissions for {with} hits");
    }
}

/// Statements seen to begin.
fn queries(db: &Connection) -> Option<u64> {
    let stats = stats(db);
    let rest = stats.split_once("\"queries\":")?.1;
    rest.trim_end_matches('}').parse().ok()
}
