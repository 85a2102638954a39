//! Prices of memory that every node has, and of memory behind a CXL switch (§5.4).

use crate::error::PlanError;
use serde::Serialize;

/// A gigabyte of the price lists.
pub const GB: f64 = 1e9;

/// Prices of parts in dollars (Table 4).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prices {
    /// DRAM, for a gigabyte.
    pub dram_gb: f64,
    /// A CXL switch.
    pub switch: f64,
    /// A host's adapter.
    pub adapter: f64,
    /// A memory expansion controller; the paper pairs one with each host.
    pub controller: f64,
    /// Ports of a switch. A node uses two: its adapter's and its controller's.
    pub switch_ports: u32,
}

impl Prices {
    /// Table 4 of the paper.
    pub const PAPER: Self = Self { dram_gb: 15.0, switch: 5800.0, adapter: 210.0, controller: 300.0, switch_ports: 32 };

    /// Refuses prices that no part has.
    ///
    /// # Errors
    /// A price is negative or not a number, or a switch has fewer than two ports.
    pub fn check(&self) -> Result<(), PlanError> {
        PlanError::unless_positive("the price of DRAM", self.dram_gb)?;
        for (what, price) in [
            ("the price of a switch", self.switch),
            ("the price of an adapter", self.adapter),
            ("the price of a controller", self.controller),
        ] {
            if !price.is_finite() || price < 0.0 {
                return Err(PlanError::NotPositive { what, value: price.to_string() });
            }
        }
        if self.switch_ports < 2 {
            return Err(PlanError::NotPositive { what: "half the number of ports", value: "0".to_owned() });
        }
        Ok(())
    }

    /// Switches of a pool with so many nodes.
    #[must_use]
    pub fn switches(&self, nodes: u32) -> u32 {
        nodes.div_ceil(self.switch_ports / 2)
    }

    /// Dollars if every node has all bytes in memory of its own.
    #[must_use]
    pub fn local(&self, bytes: f64, nodes: u32) -> f64 {
        f64::from(nodes) * bytes / GB * self.dram_gb
    }

    /// Dollars if the bytes lie once in a pool.
    #[must_use]
    pub fn pool(&self, bytes: f64, nodes: u32) -> f64 {
        let switches = f64::from(self.switches(nodes)) * self.switch;
        switches + f64::from(nodes) * (self.adapter + self.controller) + bytes / GB * self.dram_gb
    }

    /// Costs of this many bytes on this many nodes.
    #[must_use]
    pub fn cost(&self, bytes: f64, nodes: u32) -> Cost {
        let (local, pool) = (self.local(bytes, nodes), self.pool(bytes, nodes));
        Cost { nodes, local, pool, savings: local - pool }
    }

    /// The least number of nodes from which on the pool is cheaper; none if no number is.
    #[must_use]
    pub fn break_even_nodes(&self, bytes: f64) -> Option<u32> {
        const NODES_MAX: u32 = 100_000;
        let is_cheaper = |nodes: u32| self.pool(bytes, nodes) < self.local(bytes, nodes);
        // A further switch makes the pool dearer, so the last number that is not cheaper decides.
        let last = (1..=NODES_MAX).rev().find(|nodes| !is_cheaper(*nodes)).unwrap_or(0);
        (last < NODES_MAX).then_some(last + 1)
    }

    /// The bytes from which on a pool for so many nodes is cheaper; none for one node.
    #[must_use]
    pub fn break_even_bytes(&self, nodes: u32) -> Option<f64> {
        (nodes > 1).then(|| self.pool(0.0, nodes) / (f64::from(nodes - 1) * self.dram_gb) * GB)
    }
}

/// Prices of whole racks: memory as in the paper, and machines by our assumption.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RackPrices {
    /// DRAM and what a CXL pool takes.
    pub memory: Prices,
    /// A GPU.
    pub gpu: f64,
    /// A host without GPUs and without memory for KV.
    pub host: f64,
    /// A network card, with its share of cables and switches.
    pub card: f64,
}

impl RackPrices {
    /// The paper's for memory. Our assumptions, to be replaced by offers: 30,000 for a GPU, 40,000 for a
    /// host, 1,500 for a card of 100 Gb/s with its share of a switch.
    pub const ASSUMED: Self = Self { memory: Prices::PAPER, gpu: 30_000.0, host: 40_000.0, card: 1_500.0 };

    /// Refuses prices that no part has.
    ///
    /// # Errors
    /// As [`Prices::check`].
    pub fn check(&self) -> Result<(), PlanError> {
        self.memory.check()?;
        for (what, price) in
            [("the price of a GPU", self.gpu), ("the price of a host", self.host), ("the price of a card", self.card)]
        {
            if !price.is_finite() || price < 0.0 {
                return Err(PlanError::NotPositive { what, value: price.to_string() });
            }
        }
        Ok(())
    }

    /// Dollars for hosts with so many GPUs each.
    #[must_use]
    pub fn machines(&self, hosts: u32, gpus_per_host: u32) -> f64 {
        f64::from(hosts) * (self.host + f64::from(gpus_per_host) * self.gpu)
    }

    /// Dollars for so many bytes in the DRAM of each host, and a card of each to read the others'.
    #[must_use]
    pub fn mesh(&self, bytes: f64, hosts: u32) -> f64 {
        f64::from(hosts) * self.card + self.memory.local(bytes, hosts)
    }

    /// Dollars for a pool of so many bytes in the DRAM of hosts that reach each other's by RDMA.
    #[must_use]
    pub fn rdma(&self, bytes: f64, hosts: u32) -> f64 {
        f64::from(hosts) * self.card + bytes / GB * self.memory.dram_gb
    }
}

/// Dollars for both placements on some nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// Nodes.
    pub nodes: u32,
    /// Memory of each node.
    pub local: f64,
    /// One copy in a pool.
    pub pool: f64,
    /// What the pool saves; negative if it is dearer.
    pub savings: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pool_for_more_nodes_than_ports_needs_a_second_switch() {
        let prices = Prices::PAPER;
        assert_eq!((prices.switches(16), prices.switches(17)), (1, 2));
        assert_eq!(prices.pool(0.0, 17) - prices.pool(0.0, 16), 5800.0 + 510.0);
    }

    #[test]
    fn a_small_table_never_pays() {
        // 30 GB of DRAM cost less than an adapter and a controller.
        assert_eq!(Prices::PAPER.break_even_nodes(30.0 * GB), None);
        assert_eq!(Prices::PAPER.break_even_nodes(200.0 * GB), Some(4));
        assert_eq!(Prices::PAPER.break_even_nodes(800.0 * GB), Some(2));
        assert_eq!(Prices::PAPER.break_even_bytes(1), None);
    }

    #[test]
    fn impossible_prices_are_refused() {
        for (prices, words) in [
            (Prices { dram_gb: 0.0, ..Prices::PAPER }, "the price of DRAM is 0"),
            (Prices { switch: -1.0, ..Prices::PAPER }, "a switch is -1"),
            (Prices { adapter: f64::NAN, ..Prices::PAPER }, "an adapter is NaN"),
            (Prices { switch_ports: 1, ..Prices::PAPER }, "ports"),
        ] {
            let error = prices.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(Prices::PAPER.check(), Ok(()));
    }

    proptest! {
        #[test]
        fn both_break_evens_are_where_savings_begin(gb in 40.0f64..5000.0, nodes in 2u32..60) {
            let prices = Prices::PAPER;
            if let Some(first) = prices.break_even_nodes(gb * GB) {
                prop_assert!(prices.cost(gb * GB, first).savings > 0.0);
                prop_assert!(prices.cost(gb * GB, first - 1).savings <= 0.0);
            }
            let bytes = prices.break_even_bytes(nodes).unwrap();
            prop_assert!(prices.cost(bytes * 1.001, nodes).savings > 0.0);
            prop_assert!(prices.cost(bytes * 0.999, nodes).savings < 0.0);
        }
    }
}
