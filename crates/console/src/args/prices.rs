//! Prices of memory, which plans of both programs have.

use cenote_plan::cost::Prices;
use clap::Args;

/// Prices of memory and of a pool behind a switch.
#[derive(Args, Debug)]
pub struct MemoryPriceArgs {
    /// Dollars for a gigabyte of DRAM
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.dram_gb)]
    pub dram_price: f64,
    /// Dollars for a CXL switch
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.switch)]
    pub switch_price: f64,
    /// Dollars for a host's adapter
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.adapter)]
    pub adapter_price: f64,
    /// Dollars for a memory controller, one per host
    #[arg(long, help_heading = "Prices", value_name = "$", default_value_t = Prices::PAPER.controller)]
    pub controller_price: f64,
    /// Ports of a switch; a node takes two
    #[arg(long, help_heading = "Prices", value_name = "N", default_value_t = Prices::PAPER.switch_ports)]
    pub switch_ports: u32,
}

impl MemoryPriceArgs {
    /// The prices of the flags.
    pub const fn prices(&self) -> Prices {
        Prices {
            dram_gb: self.dram_price,
            switch: self.switch_price,
            adapter: self.adapter_price,
            controller: self.controller_price,
            switch_ports: self.switch_ports,
        }
    }
}
