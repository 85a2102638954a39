//! The module of one layer: rows become a key and a value, and a gate between the key and the
//! residual stream decides how much of the value is added.

use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::kernels::ElementType;
use crate::kernels::elementwise::{add_gated, rms_norm};
use crate::kernels::gemm::{PackedMatrix, matmul};

/// Weights of a module.
pub(crate) struct Module {
    /// Place of its table in the configuration.
    pub table: usize,
    key: PackedMatrix,
    value: PackedMatrix,
    query_norm: Vec<f32>,
    key_norm: Vec<f32>,
}

impl Module {
    /// Loads the module of layer `layer`, whose token reads `width` values.
    pub fn load(
        checkpoint: &mut Checkpoint,
        (layer, table): (usize, usize),
        (hidden, width): (usize, usize),
        element: ElementType,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("model.layers.{layer}.engram.{part}.weight");
        let both = checkpoint.take(&name("wkv"), &[2 * hidden, width])?;
        let (key, value) = both.split_at(hidden * width);
        // `engram.safetensors` may have the table instead; whichever has it is read elsewhere.
        checkpoint.skip(&name("embed"));
        for scale in ["weight_scale", "scale"] {
            checkpoint.skip(&format!("model.layers.{layer}.engram.embed.{scale}"));
        }
        Ok(Self {
            table,
            key: PackedMatrix::pack(key, hidden, width, element),
            value: PackedMatrix::pack(value, hidden, width, element),
            query_norm: checkpoint.take(&name("q_norm"), &[hidden])?,
            key_norm: checkpoint.take(&name("k_norm"), &[hidden])?,
        })
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.key.bytes() + self.value.bytes()
    }

    /// Adds to `x` `[tokens][hidden]` what the gate lets through of `rows` `[tokens][width]`.
    pub fn forward(&self, rows: &[f32], eps: f32, x: &mut [f32]) {
        let hidden = self.query_norm.len();
        let tokens = x.len() / hidden;
        let mut key = vec![0.0; x.len()];
        let mut normed = vec![0.0; x.len()];
        let mut value = vec![0.0; x.len()];
        matmul(rows, tokens, &self.key, None, &mut value);
        rms_norm(&value, &self.key_norm, eps, &mut key);
        rms_norm(x, &self.query_norm, eps, &mut normed);
        matmul(rows, tokens, &self.value, None, &mut value);
        add_gated(&normed, &key, &value, hidden, x);
    }
}
