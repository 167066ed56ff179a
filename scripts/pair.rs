//! Two versions of the engine in one process: see `scripts/pair`, which compiles this.
//!
//! Prints the median over all rounds of the rates, new over old, and the same of processor time per
//! operation in all rounds.

use std::path::Path;
use std::time::{Duration, Instant};

const RECORDS: u64 = 100_000;
const SEQUENCE: u64 = 1 << 20;

/// Splitmix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// Keys with a zipfian distribution of .99, scattered.
fn zipfian() -> Vec<u64> {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=RECORDS)
        .map(|rank| {
            total += (rank as f64).powf(-0.99);
            total
        })
        .collect();
    let key =
        |draw: u64| sums.partition_point(|&sum| sum < (draw >> 11) as f64 / (1u64 << 53) as f64 * total);
    (0..SEQUENCE).map(|number| mix(key(mix(number)) as u64)).collect()
}

struct Slice<'a> {
    keys: &'a [u64],
    threads: u64,
    reads: u64,
    round: u64,
    duration: Duration,
}

macro_rules! engine {
    ($engine:ident) => {
        mod $engine {
            use super::*;
            use ::$engine::{Db, Durability, Table};

            pub struct Engine(Table, Db);

            pub fn open(folder: &Path) -> Engine {
                let builder = Db::builder().dram(512 << 20).durability(Durability::Buffered);
                let db = builder.open(folder.join(stringify!($engine))).expect("it opens");
                let table = db.create_table("t").expect("a table");
                (0..RECORDS).for_each(|key| table.put(mix(key).to_be_bytes(), [7; 1000]).expect("a put"));
                Engine(table, db)
            }

            impl Engine {
                /// Operations done in the slice.
                pub fn work(&self, slice: &Slice<'_>) -> u64 {
                    std::thread::scope(|scope| {
                        let workers: Vec<_> = (0..slice.threads)
                            .map(|thread| scope.spawn(move || self.worker(slice, thread)))
                            .collect();
                        workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
                    })
                }

                fn worker(&self, slice: &Slice<'_>, thread: u64) -> u64 {
                    let (begun, mut operations) = (Instant::now(), 0);
                    let (mut at, mut state) = (mix(slice.round * 64 + thread), slice.round * 64 + thread);
                    let mut value = [0; 1000];
                    while begun.elapsed() < slice.duration {
                        for _ in 0..64 {
                            at = (at + 1) % SEQUENCE;
                            state = mix(state);
                            let key = slice.keys[at as usize].to_be_bytes();
                            if state % 100 < slice.reads {
                                std::hint::black_box(self.0.get(key).expect("a get"));
                            } else {
                                for word in value.chunks_exact_mut(8) {
                                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                                    word.copy_from_slice(&state.to_le_bytes());
                                }
                                self.0.put(key, value).expect("a put");
                            }
                        }
                        operations += 64;
                    }
                    operations
                }

                pub fn close(self) {
                    drop(self.0);
                    self.1.close().expect("it closes");
                }
            }
        }
    };
}
engine!(old);
engine!(new);

/// Processor time of this process, ended threads included, in the kernel's ticks of 10 ms.
fn processor_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
    // Behind the name: state is the first, user and system time are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks = |field| fields.split_whitespace().nth(field).and_then(|text| text.parse::<f64>().ok());
    ticks(11).expect("user time") + ticks(12).expect("system time")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = |index: usize| arguments[index].parse::<u64>().expect("a count");
    let (rounds, duration, threads, reads) = (count(2), Duration::from_millis(count(3)), count(4), count(5));
    let folder = Path::new(&arguments[0]).join(format!("terrace-pair-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let (old, new) = if arguments[1] == "old" {
        let first = old::open(&folder);
        (first, new::open(&folder))
    } else {
        let first = new::open(&folder);
        (old::open(&folder), first)
    };
    let keys = zipfian();
    let (mut rates, mut total) = (Vec::new(), [(0.0, 0.0); 2]);
    for round in 0..=rounds {
        let slice = Slice { keys: &keys, threads, reads, round, duration };
        let mut done = [(0.0, 0.0); 2];
        for turn in 0..2 {
            let which = (turn + round as usize) % 2;
            let before = processor_time();
            let operations = if which == 0 { old.work(&slice) } else { new.work(&slice) };
            done[which] = (operations as f64, processor_time() - before);
        }
        // The first round warms both.
        if round > 0 {
            rates.push(done[1].0 / done[0].0);
            (0..2).for_each(|which| {
                total[which].0 += done[which].0;
                total[which].1 += done[which].1;
            });
        }
    }
    let time = |(operations, ticks): (f64, f64)| ticks / operations;
    println!("{} {}", median(rates), time(total[1]) / time(total[0]));
    old.close();
    new.close();
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}
