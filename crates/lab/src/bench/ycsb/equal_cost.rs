//! `terrace bench ycsb --equal-cost BASE`: hierarchies of equal cost, one after another.
//!
//! [`crate::cost`] defines the cost. Each hierarchy runs in a process with a temporary database.
//! All use the base's log size, which by default depends on the budget; only memory differs. A
//! middle-store hierarchy accesses pages in the middle tier (policy 0,0,1,1). It has the least DRAM
//! that opens the engine, plus a page table for the records. `--policy`, `--clean-victims` and
//! `--admission-queue` apply to three tiers.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use terrace::migration::{Choice, Policy};
use terrace::{Db, Error, MemoryDirectory, Middle};
use terrace_common::failure::{Failure, Outcome};
use terrace_common::interrupt::Leftover;
use terrace_common::output::{print, print_json};
use terrace_common::report::{Report, Table};
use terrace_common::tiers::{MiddleArgs, MigrationArgs, TierArgs};
use terrace_common::units::{counted, show_count, show_size};
use terrace_common::values::KEY_BYTES;

use super::html;
use crate::args::YcsbArgs;
use crate::bench::{child, compare};
use crate::cost::{EqualCost, Shape, Sizes};
use crate::peers::{self, TERRACE};
use crate::workload::fields;

/// Step and maximum, in steps, of the search for the least DRAM.
const STEP_BYTES: u64 = 1 << 20;
const STEPS_MAX: u64 = 1 << 12;
/// Frames of the middle tier during that search.
const FRAMES_FEW: u64 = 64;
/// DRAM per middle-tier frame (`docs/tiers.md`, the budget).
const BYTES_BESIDE_FRAME: u64 = 66;
/// Inverse share of a budget that is not frames, rounded up.
const BUDGET_SHARE: u64 = 5;
/// Page-table bytes per page, rounded up.
const TABLE_BYTES_PER_PAGE: u64 = 32;
/// Default page size.
const PAGE_BYTES: u64 = 4096;
/// Default log size: inverse share of the budget, and bounds.
const LOG_SHARE: u64 = 2;
const LOG_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=1 << 30;

/// Output of one process.
type Run = Map<String, Value>;

/// Parent directory of the runs, removed on drop.
struct Folder(PathBuf, #[expect(dead_code, reason = "it ends on drop")] Leftover);

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Runs the three shapes; the flags give the sizes of `base`.
pub(super) fn run(args: &YcsbArgs, base: Shape, output: &mut dyn Write) -> Outcome {
    let Some(middle) = &args.tiers.middle.middle else {
        return Err(Failure::Usage("--equal-cost needs --middle: the memory of the middle tier".into()));
    };
    let dram_bytes =
        args.tiers.memory.dram.ok_or_else(|| {
            Failure::Usage(format!("--equal-cost needs --dram: the DRAM of {}", dram_of(base)))
        })?;
    // Without the least DRAM, a shape has its largest middle tier.
    let free = EqualCost { base, dram_bytes, middle: middle.clone(), least_dram_bytes: 0 };
    let least_dram_bytes = least_dram(args, middle, free.sizes()?[1].middle_bytes)?;
    let equal = EqualCost { least_dram_bytes, ..free };
    let sizes = equal.sizes()?;
    let near = args.store.clone().unwrap_or_else(|| peers::memory_files().0);
    let folder = near.join(format!("terrace-equal-cost-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(|error| Failure::file("making the directory", &folder, error))?;
    let leftover = Leftover::tree(&folder);
    let folder = Folder(folder, leftover);
    let log_bytes = args
        .tiers
        .layout
        .log_max
        .unwrap_or_else(|| (dram_bytes / LOG_SHARE).clamp(*LOG_BYTES.start(), *LOG_BYTES.end()));
    let mut runs = Vec::new();
    for (shape, sizes) in Shape::ALL.into_iter().zip(sizes) {
        let mut tiers = tiers(&args.tiers, middle, shape, sizes);
        tiers.layout.log_max = Some(log_bytes);
        let mut run = measure(args, &tiers, shape, &folder.0)?;
        run.insert("shape".into(), shape.name().into());
        run.insert("memory_cost".into(), memory_cost(&run).into());
        runs.push(run);
    }
    if let Some(path) = &args.report {
        report(args, base, &runs).write(path)?;
    }
    match args.output.json {
        true => print_json(output, &json!({ "base": base.name(), "runs": runs }))?,
        false => show(args, &equal, &runs, output)?,
    }
    match runs.iter().find(|run| run["exit_code"] != 0) {
        None => Ok(()),
        Some(run) => {
            let told = format!("{}: {}", run["shape"], run["void"]);
            Err(if run["exit_code"] == 3 { Failure::Damaged(told) } else { Failure::Work(told) })
        }
    }
}

/// The shape that `--dram` sizes.
fn dram_of(base: Shape) -> Shape {
    if base == Shape::MiddleStore { Shape::ThreeTiers } else { base }
}

/// The tiers of one shape.
fn tiers(said: &TierArgs, middle: &Middle, shape: Shape, sizes: Sizes) -> TierArgs {
    let mut tiers = said.clone();
    tiers.memory.dram = Some(sizes.dram_bytes);
    tiers.middle.middle = Some(Middle::new(middle.kind().clone(), sizes.middle_bytes));
    match shape {
        Shape::DramStore => {
            TierArgs { middle: MiddleArgs::default(), migration: MigrationArgs::default(), ..tiers }
        }
        Shape::MiddleStore => {
            let migrate = tiers.migration.migrate;
            let migration = MigrationArgs { migrate, ..Choice::Fixed(in_place()).into() };
            TierArgs { migration, ..tiers }
        }
        Shape::ThreeTiers => tiers,
    }
}

/// Every page goes to the middle tier and none from there to DRAM.
fn in_place() -> Policy {
    Policy::new(0.0, 0.0, 1.0, 1.0).expect("these are probabilities")
}

/// The least DRAM that opens a database with a middle tier. It includes the page table of the
/// records and frame data for the largest affordable `middle`.
fn least_dram(args: &YcsbArgs, middle: &Middle, most_middle_bytes: u64) -> Outcome<u64> {
    let page_bytes = args.tiers.layout.page_size.unwrap_or(PAGE_BYTES);
    // A small middle tier opens fast, and the cost of more frames is known.
    let few = Middle::new(middle.kind().clone(), FRAMES_FEW * page_bytes);
    let sizes = Sizes { dram_bytes: 0, middle_bytes: few.bytes() };
    let open = |steps: u64| {
        let mut settings = tiers(&args.tiers, &few, Shape::MiddleStore, sizes);
        settings.memory.dram = Some(steps * STEP_BYTES);
        let builder = settings.builder()?;
        builder.directory(Arc::new(MemoryDirectory::new())).open("").and_then(Db::close)
    };
    let mut most = 1;
    loop {
        match open(most) {
            Ok(()) => break,
            // Treated like too little DRAM.
            Err(Error::Config(_)) if most < STEPS_MAX => most *= 2,
            Err(error) => return Err(error.into()),
        }
    }
    let mut less = most / 2;
    while most - less > 1 {
        let half = less + (most - less) / 2;
        match open(half) {
            Ok(()) => most = half,
            Err(_) => less = half,
        }
    }
    let data_bytes = args.records.saturating_mul((args.value_bytes() + KEY_BYTES) as u64);
    // A growing tree may leave its pages half full.
    let table = data_bytes / page_bytes * 2 * TABLE_BYTES_PER_PAGE;
    let beside = most_middle_bytes / page_bytes * BYTES_BESIDE_FRAME;
    // Also the parts that scale with the whole budget: log buffer, lock table, old versions.
    let more = (table + beside) / BUDGET_SHARE;
    Ok((most * STEP_BYTES + table + beside + more).next_multiple_of(STEP_BYTES))
}

fn measure(args: &YcsbArgs, tiers: &TierArgs, shape: Shape, folder: &Path) -> Outcome<Run> {
    let database = folder.join(shape.name());
    let program = std::env::current_exe()
        .map_err(|error| Failure::Work(format!("finding this program's file failed: {error}")))?;
    let mut command = Command::new(program);
    command.args(["bench", "ycsb", "--json", "--engine", TERRACE]).args(compare::flags(args, tiers));
    if args.store.is_some() {
        command.arg("--store").arg(&database);
    }
    // Otherwise the environment would add a middle tier to the two-tier hierarchy.
    command.env_remove("TERRACE_MIDDLE");
    let done = child::output(shape.name(), &mut command)?;
    drop(fs::remove_dir_all(&database));
    let code = done.status.code();
    match (serde_json::from_slice(&done.stdout), code) {
        (Ok(Value::Object(mut run)), Some(code)) => {
            run.insert("exit_code".into(), code.into());
            Ok(run)
        }
        // The child has already reported the flag error.
        (_, Some(2)) => {
            Err(Failure::Usage(format!("--equal-cost: {shape} cannot be opened with these flags")))
        }
        _ => Err(Failure::Work(format!("--equal-cost: {shape} ended with {}", done.status))),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn memory_cost(run: &Run) -> f64 {
    ["dram", "middle"].iter().map(|tier| number(&run["prices"][tier]["dollars"])).sum()
}

/// Name, DRAM, middle tier, dollars, operations/s, ratio to the base, p50, p99, store bytes per
/// operation.
fn row(run: &Run, base: f64) -> [String; 9] {
    let bytes = |tier: &str| show_size(number(&run["prices"][tier]["bytes"]) as u64);
    let rate = number(&run["ops_per_second"]);
    let latency = |key: &str| format!("{:.1}", number(&run["latency_us"][key]));
    [
        run["shape"].as_str().unwrap_or_default().to_owned(),
        bytes("dram"),
        bytes("middle"),
        format!("{:.4}", memory_cost(run)),
        show_count(rate as u64),
        format!("{:.2}", rate / base.max(f64::MIN_POSITIVE)),
        latency("p50"),
        latency("p99"),
        format!("{:.0}", number(&run["store_bytes_per_operation"])),
    ]
}

const HEADER: [&str; 9] =
    ["hierarchy", "DRAM", "middle", "dollars", "operations/s", "of base", "p50 us", "p99 us", "B/operation"];

fn rows(base: Shape, runs: &[Run]) -> Vec<[String; 9]> {
    let of_base = runs.iter().find(|run| run["shape"] == base.name());
    let rate = of_base.map_or(0.0, |run| number(&run["ops_per_second"]));
    runs.iter().map(|run| row(run, rate)).collect()
}

fn show(args: &YcsbArgs, equal: &EqualCost, runs: &[Run], output: &mut dyn Write) -> Outcome {
    let (records, bytes) = (counted(args.records, "record"), args.value_bytes());
    let YcsbArgs { workload, distribution, threads, .. } = args;
    let threads = counted((*threads).into(), "thread");
    let fields = fields::told(args.fields.map(|fields| fields.to_string()).as_deref(), args.touch);
    print(
        output,
        format_args!("ycsb {workload}, {records} of {bytes} B{fields}, {distribution}, {threads}\n"),
    )?;
    let (kind, least) = (equal.middle.kind(), show_size(equal.least_dram_bytes));
    print(
        output,
        format_args!(
            "memory that costs what {} does; the middle tier is {kind}; {least} of DRAM is the least the engine needs\n\n",
            equal.base
        ),
    )?;
    let line = |cells: &[String; 9]| {
        let [shape, rest @ ..] = cells;
        let rest: Vec<String> = rest.iter().map(|cell| format!("{cell:>12}")).collect();
        format!("{shape:<13}{}\n", rest.join(" "))
    };
    print(output, format_args!("{}", line(&HEADER.map(str::to_owned))))?;
    rows(equal.base, runs).iter().try_for_each(|cells| print(output, format_args!("{}", line(cells))))
}

fn report(args: &YcsbArgs, base: Shape, runs: &[Run]) -> Report {
    let lead = format!(
        "Hierarchies whose memory costs what {base} does: {} of {} bytes, keys {}, {}.",
        counted(args.records, "record"),
        args.value_bytes(),
        args.distribution,
        counted(args.threads.into(), "thread")
    );
    let mut page = Report::new(&format!("YCSB {} at equal cost", args.workload), &lead);
    let mut table = Table::new("", &HEADER);
    for cells in rows(base, runs) {
        table.row(cells);
    }
    let series: Vec<(&str, Vec<(f64, u64)>)> = runs
        .iter()
        .map(|run| {
            let ticks = run["over_time"].as_array().into_iter().flatten();
            let tick = |tick: &Value| (number(&tick[0]), tick[1].as_u64().unwrap_or(0));
            (run["shape"].as_str().unwrap_or_default(), ticks.map(tick).collect())
        })
        .collect();
    let series: Vec<(&str, &[(f64, u64)])> = series.iter().map(|(name, ticks)| (*name, &ticks[..])).collect();
    page.section("Hierarchies").table(&table).lines(&html::over_time(&series));
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Line;

    fn args(flags: &str) -> YcsbArgs {
        Line::ycsb(flags).unwrap()
    }

    #[test]
    fn each_shape_has_its_own_tiers_and_all_else_in_common() {
        let args = args(
            "--equal-cost three-tiers --middle simulated:optane,64MiB --dram 16MiB --policy lazy --clean-victims always",
        );
        let middle = args.tiers.middle.middle.clone().unwrap();
        let sizes = Sizes { dram_bytes: 1 << 20, middle_bytes: 2 << 20 };
        let of = |shape| tiers(&args.tiers, &middle, shape, sizes);
        let two = of(Shape::DramStore);
        assert_eq!((two.memory.dram, two.middle.middle), (Some(1 << 20), None));
        assert_eq!(two.migration, MigrationArgs::default());
        let in_place = of(Shape::MiddleStore);
        let choice: Choice = "0,0,1,1".parse().unwrap();
        assert_eq!(in_place.migration, choice.into());
        assert_eq!(
            in_place.middle.middle.map(|middle| middle.to_string()),
            Some("simulated:optane,2097152B".into())
        );
        let three = of(Shape::ThreeTiers);
        assert_eq!(three.migration, args.tiers.migration);
        assert_ne!(three.migration, MigrationArgs::default());
    }

    #[test]
    fn the_least_dram_of_a_small_tier_is_little() {
        let args = args(
            "--equal-cost three-tiers --middle simulated:optane,64MiB --dram 16MiB --records 1000 --page-size 16KiB",
        );
        let middle = args.tiers.middle.middle.clone().unwrap();
        let least = least_dram(&args, &middle, 64 << 20).unwrap();
        assert!((1 << 20..=8 << 20).contains(&least), "{least}");
    }

    /// The middle tier is large enough that parts scaling with the budget matter.
    #[test]
    fn middle_store_opens_with_the_least_dram_of_its_size() {
        let args =
            args("--equal-cost dram-store --middle simulated:optane,32MiB --dram 346MiB --records 1000");
        let middle = args.tiers.middle.middle.clone().unwrap();
        let free = EqualCost { base: Shape::DramStore, dram_bytes: 346 << 20, middle, least_dram_bytes: 0 };
        let most = free.sizes().unwrap()[1].middle_bytes;
        assert!(most > 768 << 20);
        let equal = EqualCost { least_dram_bytes: least_dram(&args, &free.middle, most).unwrap(), ..free };
        let own = tiers(&args.tiers, &equal.middle, Shape::MiddleStore, equal.sizes().unwrap()[1]);
        let builder = own.builder().unwrap();
        builder.directory(Arc::new(MemoryDirectory::new())).open("").unwrap();
    }
}
