//! `terrace devices`

use std::io::Write;

use terrace_common::failure::Outcome;
use terrace_common::output::{print, print_json};
use terrace_common::units::show_size;

use crate::args::DevicesArgs;
use crate::devices;

/// Shows the devices of this machine.
pub fn run(args: &DevicesArgs, output: &mut dyn Write) -> Outcome {
    let found = devices::find(&args.store)?;
    if args.output.json {
        return print_json(output, &found);
    }
    for node in &found.nodes {
        let speed = match &node.unmeasured {
            Some(why) => format!("not measured: {why}"),
            None => format!(
                "load {:.0} ns, read {:.1} GB/s, write {:.1} GB/s (one thread)",
                node.read_latency_ns, node.read_gb_s, node.write_gb_s
            ),
        };
        let cpus = node.cpus.len();
        let tier = node.memory_tier.map_or(String::new(), |tier| format!(", memory tier {tier}"));
        print(
            output,
            format_args!(
                "node {}: {} ({} free), {cpus} processors{tier}, {speed}\n",
                node.node,
                show_size(node.bytes),
                show_size(node.free_bytes)
            ),
        )?;
        if let Some(hmat) = &node.hmat {
            print(
                output,
                format_args!(
                    "  by the firmware (HMAT; 0 is not said): read {} ns and {:.1} GB/s, write {} ns and {:.1} GB/s\n",
                    hmat.read_latency_ns, hmat.read_gb_s, hmat.write_latency_ns, hmat.write_gb_s
                ),
            )?;
        }
        if found.nodes.len() > 1 {
            let far = Vec::from_iter(node.distances.iter().map(u32::to_string)).join(" ");
            print(output, format_args!("  distances to the nodes, by number: {far}\n"))?;
        }
    }
    if found.numa_balancing && found.nodes.len() > 1 {
        print(
            output,
            format_args!(
                "warning: the kernel moves pages between nodes on its own, against what tiers ask for; \
                 turn it off with `sysctl kernel.numa_balancing=0`\n"
            ),
        )?;
    }
    for dax in &found.dax {
        print(
            output,
            format_args!("direct access: {} ({})\n", terrace_common::escape::text(&dax.path), dax.kind),
        )?;
    }
    for disk in &found.store {
        let note = if disk.direct { "" } else { ", through the page cache: this is memory's speed" };
        print(
            output,
            format_args!(
                "disk under {}: random 4 KiB read {:.0} us (p99 {:.0}), durable write {:.0} us{note}\n",
                disk.path, disk.read_latency_us, disk.read_latency_p99_us, disk.durable_write_us
            ),
        )?;
    }
    Ok(())
}
