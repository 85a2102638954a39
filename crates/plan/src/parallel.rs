//! Ranks of an engine: data, tensor and pipeline parallelism (§4.3).

use crate::error::PlanError;
use serde::Serialize;

/// Ranks of an engine, and nodes with such an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Parallel {
    /// Replicas with batches of their own, on each node.
    pub dp: u32,
    /// Ranks that share each layer.
    pub tp: u32,
    /// Stages of layers.
    pub pp: u32,
    /// Nodes that run this.
    pub nodes: u32,
}

impl Parallel {
    /// One rank on one node.
    pub const SINGLE: Self = Self { dp: 1, tp: 1, pp: 1, nodes: 1 };

    /// Refuses counts that no engine has.
    ///
    /// # Errors
    /// A count is zero, or there are more stages than layers.
    pub fn check(&self, layers: u64) -> Result<(), PlanError> {
        for (what, count) in [
            ("data parallelism", self.dp),
            ("tensor parallelism", self.tp),
            ("pipeline parallelism", self.pp),
            ("the number of nodes", self.nodes),
        ] {
            PlanError::unless_positive(what, f64::from(count))?;
        }
        if u64::from(self.pp) > layers {
            let expected = format!("at most {layers}, the number of layers");
            return Err(PlanError::Invalid { key: "pp".to_owned(), value: self.pp.to_string(), expected });
        }
        Ok(())
    }

    /// The first layer of each stage, and the end: whole layers, earlier stages the larger ones.
    #[must_use]
    pub fn stages(&self, layers: u64) -> Vec<u64> {
        let (each, more) = (layers / u64::from(self.pp), layers % u64::from(self.pp));
        (0..=u64::from(self.pp)).map(|stage| stage * each + stage.min(more)).collect()
    }

    /// The stage of a layer.
    #[must_use]
    pub fn stage_of(&self, layer: u64, layers: u64) -> u64 {
        let starts = self.stages(layers);
        let stage = starts.iter().rposition(|start| *start <= layer).unwrap_or(0);
        (stage as u64).min(u64::from(self.pp) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_cover_all_layers() {
        let parallel = Parallel { pp: 3, ..Parallel::SINGLE };
        assert_eq!(parallel.stages(64), [0, 22, 43, 64]);
        let stages: Vec<u64> = [0, 21, 22, 42, 43, 63].map(|layer| parallel.stage_of(layer, 64)).to_vec();
        assert_eq!(stages, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn counts_are_checked() {
        assert!(Parallel { tp: 0, ..Parallel::SINGLE }.check(4).unwrap_err().to_string().contains("tensor"));
        assert!(Parallel { pp: 5, ..Parallel::SINGLE }.check(4).unwrap_err().to_string().contains("at most 4"));
        assert_eq!(Parallel::SINGLE.check(1), Ok(()));
    }
}
