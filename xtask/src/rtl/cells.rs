//! Cells of modules, from the statistics of Yosys.

use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Cells of a module, with those inside its instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cells {
    /// Tables of six inputs.
    pub luts: u64,
    /// Flip-flops.
    pub flip_flops: u64,
    /// Bits of memories, which are neither.
    pub memory_bits: u64,
}

impl AddAssign for Cells {
    fn add_assign(&mut self, other: Self) {
        self.luts += other.luts;
        self.flip_flops += other.flip_flops;
        self.memory_bits += other.memory_bits;
    }
}

/// A module's own cells, and its instances with their numbers.
#[derive(Default)]
struct Module<'a> {
    own: Cells,
    instances: Vec<(&'a str, u64)>,
}

/// All modules of a report with two statistics: one before memories become cells, one of cells.
/// A module with several sets of parameters has the cells of the largest.
#[must_use]
pub fn of_modules(report: &str) -> BTreeMap<String, Cells> {
    let mut modules: BTreeMap<&str, Module<'_>> = BTreeMap::new();
    for section in report.split("\n=== ").skip(1) {
        let Some((name, text)) = section.split_once(" ===") else { continue };
        let module = modules.entry(name).or_default();
        // The second statistic of a module replaces the cells of the first.
        let memory_bits = module.own.memory_bits;
        *module = Module { own: Cells { memory_bits, ..Cells::default() }, instances: Vec::new() };
        for line in text.lines().map(str::trim) {
            if let Some(bits) = line.strip_prefix("Number of memory bits:") {
                module.own.memory_bits = memory_bits.max(bits.trim().parse().unwrap_or(0));
            }
            let Some((cell, Ok(count))) = line.rsplit_once(' ').map(|(cell, count)| (cell.trim(), count.parse()))
            else {
                continue;
            };
            match cell {
                "$lut" => module.own.luts += count,
                cell if cell.starts_with("$_") && cell.contains("DFF") => module.own.flip_flops += count,
                cell => module.instances.push((cell, count)),
            }
        }
    }
    let mut largest: BTreeMap<String, Cells> = BTreeMap::new();
    for name in modules.keys().filter(|name| **name != "design hierarchy") {
        let cells = total(&modules, name);
        let entry = largest.entry(plain(name).to_owned()).or_default();
        *entry = cells.max(*entry);
    }
    largest
}

fn total(modules: &BTreeMap<&str, Module<'_>>, name: &str) -> Cells {
    let Some(module) = modules.get(name) else { return Cells::default() };
    let mut cells = module.own;
    for (instance, count) in &module.instances {
        let inside = total(modules, instance);
        for _ in 0..*count {
            cells += inside;
        }
    }
    cells
}

/// The name of a module without its parameters: `$paramod\fifo\W=8` or `$paramod$1f…\fifo`.
fn plain(name: &str) -> &str {
    if name.starts_with("$paramod") { name.split('\\').nth(1).unwrap_or(name) } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_instances_count() {
        let report = "noise\n=== $paramod\\fifo\\W=8 ===\n\n   Number of memory bits:  32\n   Number of cells:  3\n     $add  3\n\
                      \n=== top ===\n\n   Number of memory bits:  0\n   Number of cells:  2\n     $paramod\\fifo\\W=8  2\n\
                      \n=== $paramod\\fifo\\W=8 ===\n\n   Number of memory bits:  0\n   Number of cells:  9\n     $_SDFFE_PP0P_  4\n     $lut  5\n\
                      \n=== top ===\n\n   Number of cells:  3\n     $lut  1\n     $paramod\\fifo\\W=8  2\n\
                      \n=== design hierarchy ===\n\n   top  1\n     $paramod\\fifo\\W=8  2\n";
        let cells = of_modules(report);
        let of = |luts, flip_flops, memory_bits| Cells { luts, flip_flops, memory_bits };
        assert_eq!(cells["fifo"], of(5, 4, 32));
        assert_eq!(cells["top"], of(11, 8, 64));
        assert_eq!(cells.len(), 2);
    }
}
