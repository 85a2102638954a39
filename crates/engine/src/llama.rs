//! The Llama model (Touvron et al., 2023): embedding, attention and MLP layers, norm, output
//! projection.
//!
//! The forward pass runs on plain slices with this crate's kernels instead of a tensor library, for
//! two reasons. First, the pass reads and writes the batch's KV pages in place, which
//! side-effect-free tensor operations cannot express. Second, batch invariance must hold for every
//! product; libraries block a product by the number of rows and do not guarantee it.
//!
//! Shapes: a batch has `rows` tokens in total; activations are row-major `[rows][width]` in f32.

use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::engram::{Module, Rows, Tables};
use crate::error::LoadError;
use crate::kernels::ElementType;
use crate::kernels::attention::{ChunkPages, QueryChunk, attend};
use crate::kernels::elementwise::{add, rms_norm, rotate, swiglu};
use crate::kernels::gemm::{PackedMatrix, matmul};
use crate::kv::{KvArena, KvLayout};
use crate::lazy::{LazyBlock, decode_layer};
use crate::sparse::{SparseDecode, SparseQuery};
use crate::stream::Streamer;
use cenote_base::{RequestId, TokenId};
use cenote_policy::kv_blocks::BlockId;

/// The weights and the configuration of a model.
pub struct Llama {
    config: ModelConfig,
    embedding: PackedMatrix,
    /// `None`: the embedding is also the output projection.
    output: Option<PackedMatrix>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    /// Angle per position for each pair of dimensions of a head.
    inverse_frequencies: Vec<f32>,
    /// Tables of n-grams, if the model has some.
    tables: Option<Tables>,
}

struct Layer {
    /// Adds rows of n-grams before attention.
    engram: Option<Module>,
    attention_norm: Vec<f32>,
    /// Q, K and V in one matrix: they share their input.
    qkv: Linear,
    attention_output: Linear,
    mlp_norm: Vec<f32>,
    /// Gate and up in one matrix.
    gate_up: Linear,
    down: Linear,
}

struct Linear {
    weight: PackedMatrix,
    bias: Option<Vec<f32>>,
}

/// Consecutive tokens of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct SeqChunk<'a> {
    /// The tokens to compute.
    pub tokens: &'a [TokenId],
    /// The tokens before them. A model with tables of n-grams reads the last ones; others none.
    pub before: &'a [TokenId],
    /// Position of the first token. KV of all earlier positions must be in the arena or in lazy
    /// blocks.
    pub start_position: usize,
    /// The sequence's blocks, enough for all positions up to the last token.
    pub block_table: &'a [BlockId],
    /// Selects the tokens that need logits.
    pub logits: LogitsOf,
}

/// KV that is not in L1 when a step begins.
pub struct Beyond<'a> {
    /// Blocks that are decoded while the step computes.
    pub lazy: &'a [LazyBlock],
    /// Spilled blocks.
    pub streamer: &'a mut Streamer,
    /// Pages that decode steps choose.
    pub sparse: &'a mut SparseDecode,
    /// The chunks of one token that read only the pages that they choose, as indexes into the batch,
    /// and their requests.
    pub choosing: &'a [(usize, RequestId)],
    /// Rows of n-grams.
    pub rows: &'a mut Rows,
}

/// Inputs of one layer's attention, passed to the observer of [`Llama::forward_observed`].
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Layer, from 0.
    pub layer: usize,
    /// Rows of the batch. Each row holds all queries, then all keys (both rotated), then all
    /// values, as `[head][dim]`.
    qkv: &'a [f32],
    q_size: usize,
    kv_size: usize,
}

impl<'a> Observed<'a> {
    /// Queries, keys and values of each token, in batch order.
    pub fn tokens(&self) -> impl Iterator<Item = [&'a [f32]; 3]> + use<'a> {
        let (q_size, kv_size) = (self.q_size, self.kv_size);
        self.qkv.chunks_exact(q_size + 2 * kv_size).map(move |row| {
            let (q, kv) = row.split_at(q_size);
            let (k, v) = kv.split_at(kv_size);
            [q, k, v]
        })
    }
}

/// Selects the tokens of a chunk that need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsOf {
    /// None: the chunk ends within a prompt.
    Nothing,
    /// The last token, to choose the next one.
    Last,
    /// Every token (evaluation and tests).
    All,
}

impl Linear {
    /// Stacks the matrices `names` (outputs `sizes`) over one input of width `k`.
    fn load(
        checkpoint: &mut Checkpoint,
        names: &[(String, usize)],
        k: usize,
        has_bias: bool,
        element: ElementType,
    ) -> Result<Self, LoadError> {
        let n = names.iter().map(|(_, size)| size).sum();
        let mut weight = PackedMatrix::zeroed(n, k, element);
        let mut bias = has_bias.then(Vec::new);
        let mut first = 0;
        for (name, size) in names {
            weight.fill_rows(first, &checkpoint.take(&format!("{name}.weight"), &[*size, k])?);
            if let Some(bias) = &mut bias {
                bias.extend(checkpoint.take(&format!("{name}.bias"), &[*size])?);
            }
            first += size;
        }
        Ok(Self { weight, bias })
    }

    fn forward(&self, x: &[f32], rows: usize, out: &mut [f32]) {
        matmul(x, rows, &self.weight, self.bias.as_deref(), out);
    }
}

impl Llama {
    /// Loads all weights, rounded to `element`.
    ///
    /// # Errors
    /// A tensor is missing, unexpected or does not fit the configuration.
    pub fn load(config: ModelConfig, checkpoint: &mut Checkpoint, element: ElementType) -> Result<Self, LoadError> {
        let hidden = config.hidden_size;
        let vocabulary = [config.vocab_size, hidden];
        const EMBEDDING: &str = "model.embed_tokens.weight";
        const OUTPUT: &str = "lm_head.weight";
        let pack = |rows: &[f32]| PackedMatrix::pack(rows, config.vocab_size, hidden, element);
        let (embedding, output) = if !config.tie_word_embeddings {
            let embedding = pack(&checkpoint.take(EMBEDDING, &vocabulary)?);
            (embedding, Some(pack(&checkpoint.take(OUTPUT, &vocabulary)?)))
        } else if !checkpoint.contains(OUTPUT) {
            (pack(&checkpoint.take(EMBEDDING, &vocabulary)?), None)
        } else if !checkpoint.contains(EMBEDDING) {
            (pack(&checkpoint.take(OUTPUT, &vocabulary)?), None)
        } else {
            // As in transformers: if the tensors of a "tied" file differ, both are used.
            let embedding = checkpoint.take(EMBEDDING, &vocabulary)?;
            let output = checkpoint.take(OUTPUT, &vocabulary)?;
            (pack(&embedding), (embedding != output).then(|| pack(&output)))
        };

        let mut layers = Vec::with_capacity(config.num_layers);
        let (q_size, kv_size) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
        for index in 0..config.num_layers {
            let name = |part: &str| format!("model.layers.{index}.{part}");
            let inter = config.intermediate_size;
            let place = config.engram.as_ref().and_then(|engram| {
                let table = engram.layer_ids.iter().position(|id| *id == index as u64)?;
                Some((table, engram.rows_per_token() * engram.row_values))
            });
            let engram = place
                .map(|(table, width)| Module::load(checkpoint, (index, table), (hidden, width), element))
                .transpose()?;
            layers.push(Layer {
                engram,
                attention_norm: checkpoint.take(&name("input_layernorm.weight"), &[hidden])?,
                qkv: Linear::load(
                    checkpoint,
                    &[
                        (name("self_attn.q_proj"), q_size),
                        (name("self_attn.k_proj"), kv_size),
                        (name("self_attn.v_proj"), kv_size),
                    ],
                    hidden,
                    config.attention_bias,
                    element,
                )?,
                attention_output: Linear::load(
                    checkpoint,
                    &[(name("self_attn.o_proj"), hidden)],
                    q_size,
                    config.attention_bias,
                    element,
                )?,
                mlp_norm: checkpoint.take(&name("post_attention_layernorm.weight"), &[hidden])?,
                gate_up: Linear::load(
                    checkpoint,
                    &[(name("mlp.gate_proj"), inter), (name("mlp.up_proj"), inter)],
                    hidden,
                    config.mlp_bias,
                    element,
                )?,
                down: Linear::load(checkpoint, &[(name("mlp.down_proj"), hidden)], inter, config.mlp_bias, element)?,
            });
        }
        let norm = checkpoint.take("model.norm.weight", &[hidden])?;
        checkpoint.finish()?;
        let inverse_frequencies = config.rope.inverse_frequencies(config.head_dim);
        Ok(Self { config, embedding, output, layers, norm, inverse_frequencies, tables: None })
    }

    /// The same with the tables that its configuration describes. Without them it cannot compute.
    #[must_use]
    pub fn with_tables(self, tables: Tables) -> Self {
        assert_eq!(Some(tables.config()), self.config.engram.as_ref(), "tables of this configuration");
        Self { tables: Some(tables), ..self }
    }

    /// The tables of n-grams, if the model has some.
    #[must_use]
    pub const fn tables(&self) -> Option<&Tables> {
        self.tables.as_ref()
    }

    /// The model's configuration.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Shape of this model's KV blocks for `block_tokens` tokens of `element`.
    #[must_use]
    pub const fn kv_layout(&self, block_tokens: usize, element: ElementType) -> KvLayout {
        KvLayout {
            num_layers: self.config.num_layers,
            num_kv_heads: self.config.num_kv_heads,
            head_dim: self.config.head_dim,
            block_tokens,
            element,
        }
    }

    /// Gain of an error in each V value into the residual stream. It is the norm of the value's
    /// column in the output projection, over all query heads that share the KV head.
    /// `[kv_head][dim]`.
    ///
    /// # Panics
    /// `layer` is out of range.
    #[must_use]
    pub fn value_gains(&self, layer: usize) -> Vec<f32> {
        let (config, weight) = (&self.config, &self.layers[layer].attention_output.weight);
        let (dim, group) = (config.head_dim, config.num_heads / config.num_kv_heads);
        let mut squares = vec![0.0_f64; config.num_kv_heads * dim];
        let mut row = vec![0.0; config.num_heads * dim];
        for index in 0..config.hidden_size {
            weight.row(index, &mut row);
            for (head, part) in row.chunks_exact(dim).enumerate() {
                let sums = &mut squares[head / group * dim..][..dim];
                sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += f64::from(value * value));
            }
        }
        squares.into_iter().map(|sum| sum.sqrt() as f32).collect()
    }

    /// What errors in the V values of each head cost in the residual stream: an error `e` of a head's
    /// values changes it by `e' M e`, squared, if each query head that shares them had all of its
    /// attention on one token. `[kv_head][dim][dim]`.
    ///
    /// # Panics
    /// `layer` is out of range.
    #[must_use]
    pub fn value_metrics(&self, layer: usize) -> Vec<f32> {
        let (config, weight) = (&self.config, &self.layers[layer].attention_output.weight);
        let (dim, group) = (config.head_dim, config.num_heads / config.num_kv_heads);
        let mut sums = vec![0.0_f64; config.num_kv_heads * dim * dim];
        let mut row = vec![0.0; config.num_heads * dim];
        for index in 0..config.hidden_size {
            weight.row(index, &mut row);
            for (head, part) in row.chunks_exact(dim).enumerate() {
                let sums = &mut sums[head / group * dim * dim..][..dim * dim];
                for (sums, first) in sums.chunks_exact_mut(dim).zip(part) {
                    sums.iter_mut().zip(part).for_each(|(sum, second)| *sum += f64::from(first * second));
                }
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    /// Bytes of the packed weights.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        let layers = self.layers.iter().flat_map(|l| [&l.qkv, &l.attention_output, &l.gate_up, &l.down]);
        let matrices = layers.map(|linear| &linear.weight).chain(&self.output).chain([&self.embedding]);
        let modules = self.layers.iter().filter_map(|layer| layer.engram.as_ref());
        matrices.map(PackedMatrix::bytes).sum::<usize>() + modules.map(Module::bytes).sum::<usize>()
    }

    /// Computes a ragged batch on the current rayon pool and writes the KV of every token into
    /// `kv`. Returns the requested logits, `[token][vocab_size]`, in the order of the chunks.
    /// All tokens must be below `vocab_size`.
    pub fn forward(&self, batch: &[SeqChunk<'_>], kv: &mut KvArena) -> Vec<f32> {
        self.forward_observed(batch, kv, &mut |_| {})
    }

    /// As [`Self::forward`]; calls `observe` with the attention inputs of each layer.
    pub fn forward_observed(
        &self,
        batch: &[SeqChunk<'_>],
        kv: &mut KvArena,
        observe: &mut dyn FnMut(Observed<'_>),
    ) -> Vec<f32> {
        let (streamer, sparse, rows) = (&mut Streamer::off(), &mut SparseDecode::off(), &mut Rows::untimed());
        let beyond = Beyond { lazy: &[], streamer, sparse, choosing: &[], rows: &mut *rows };
        let logits = self.forward_beyond(batch, kv, beyond, observe);
        // Only the serving loop can end one request.
        if let Some((_, why)) = rows.take_failed().pop_first() {
            panic!("{why}");
        }
        logits
    }

    /// As [`Self::forward_observed`], while lazy blocks are decoded, and the pages of spilled blocks
    /// and those that sparse chunks choose arrive, each layer before its attention. If a block has
    /// failed afterwards, the results of its sequence are invalid; other sequences are unaffected. The
    /// same holds for a chunk whose rows of n-grams failed ([`Rows::take_failed`]).
    pub fn forward_beyond<'a>(
        &self,
        batch: &[SeqChunk<'a>],
        kv: &mut KvArena,
        beyond: Beyond<'_>,
        observe: &mut dyn FnMut(Observed<'_>),
    ) -> Vec<f32> {
        let Beyond { lazy, streamer, sparse, choosing, rows: ngrams } = beyond;
        let config = &self.config;
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let (q_size, kv_size) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let qkv_size = q_size + 2 * kv_size;
        let rows = batch.iter().map(|chunk| chunk.tokens.len()).sum();
        if let Some(tables) = &self.tables {
            ngrams.begin(tables, batch);
        }
        let chunks = query_chunks(batch);
        let cos_sin = self.cos_sin(batch, rows);
        let mut lazy: Vec<&LazyBlock> = lazy.iter().collect();
        lazy.sort_unstable_by_key(|lazy| lazy.block());
        let lazy = &lazy[..];

        let mut x = vec![0.0; rows * hidden];
        let mut normed = vec![0.0; rows * hidden];
        let mut projected = vec![0.0; rows * hidden];
        let mut qkv = vec![0.0; rows * qkv_size];
        let mut attended = vec![0.0; rows * q_size];
        let mut gate_up = vec![0.0; rows * 2 * config.intermediate_size];
        let mut activated = vec![0.0; rows * config.intermediate_size];
        let mut project = |layer: &Layer, x: &mut [f32], normed: &mut [f32], qkv: &mut [f32]| {
            if let Some(module) = &layer.engram {
                let tables = self.tables.as_ref().expect("a model is loaded with its tables");
                let arrived = ngrams.arrive(tables, module.table);
                module.forward(arrived.values(), config.rms_norm_eps, x);
            }
            rms_norm(x, &layer.attention_norm, config.rms_norm_eps, normed);
            layer.qkv.forward(normed, rows, qkv);
            rotate(qkv, qkv_size, config.num_heads + config.num_kv_heads, head_dim, &cos_sin);
        };

        // A scope spans from one layer's attention to the next's. It decodes the next
        // layer's blocks.
        let layers = kv.layers_mut();
        let reads_all = |at: &usize| choosing.iter().all(|(choosing, _)| choosing != at);
        let read = |(at, chunk): (usize, &SeqChunk<'a>)| if reads_all(&at) { chunk.block_table } else { &[] };
        let tiles = streamer.begin(batch.iter().enumerate().map(read), config.num_kv_heads);
        sparse.begin(choosing.iter().map(|(_, request)| *request));
        rayon::in_place_scope(|scope| {
            decode_layer(scope, lazy, 0, &mut layers[0]);
            let tokens = batch.iter().flat_map(|chunk| chunk.tokens);
            x.chunks_exact_mut(hidden).zip(tokens).for_each(|(row, token)| self.embedding.row(*token as usize, row));
            project(&self.layers[0], &mut x, &mut normed, &mut qkv);
        });
        for (index, layer) in self.layers.iter().enumerate() {
            let [kv, later @ ..] = &mut layers[index..] else { unreachable!("the arena has the model's layers") };
            rayon::in_place_scope(|scope| {
                if let Some(next) = later.first_mut() {
                    decode_layer(scope, lazy, index + 1, next);
                }
                observe(Observed { layer: index, qkv: &qkv, q_size, kv_size });
                for (chunk, SeqChunk { block_table, .. }) in chunks.iter().zip(batch) {
                    for row in 0..chunk.rows {
                        let (_, kv_row) = qkv[(chunk.first_row + row) * qkv_size..][..qkv_size].split_at(q_size);
                        let (k, v) = kv_row.split_at(kv_size);
                        kv.write(block_table, chunk.start_position + row, k, v);
                    }
                }
                let queries: Vec<SparseQuery<'_>> = choosing
                    .iter()
                    .map(|&(at, request)| SparseQuery {
                        request,
                        q: &qkv[chunks[at].first_row * qkv_size..][..q_size],
                        block_table: batch[at].block_table,
                        position: batch[at].start_position,
                    })
                    .collect();
                sparse.choose(index, &queries, streamer);
                let chosen: Vec<_> = queries.iter().map(|query| sparse.chosen(index, query, kv.view())).collect();
                let mut reading = chunks.clone();
                for ((at, _), (read, pages)) in choosing.iter().zip(&chosen) {
                    (reading[*at].start_position, reading[*at].pages) = (*read, ChunkPages::Chosen(pages));
                }
                for (at, tile) in tiles.iter().enumerate() {
                    streamer.arrive(index, at);
                    let reading: Vec<QueryChunk<'_>> = tile.sequences.iter().map(|at| reading[*at]).collect();
                    let (view, of) = (kv.view_with(streamer.staged()), tile.heads.clone());
                    attend(view, &qkv, qkv_size, config.num_heads, of, &reading, &mut attended);
                }
                sparse.computed(index, &queries, streamer);
                layer.attention_output.forward(&attended, rows, &mut projected);
                add(&projected, &mut x, hidden);

                rms_norm(&x, &layer.mlp_norm, config.rms_norm_eps, &mut normed);
                layer.gate_up.forward(&normed, rows, &mut gate_up);
                swiglu(&gate_up, config.intermediate_size, &mut activated);
                layer.down.forward(&activated, rows, &mut projected);
                add(&projected, &mut x, hidden);
                if let Some(next) = self.layers.get(index + 1) {
                    project(next, &mut x, &mut normed, &mut qkv);
                }
            });
        }

        sparse.end(choosing.iter().map(|(_, request)| *request));
        let wanted = logit_rows(batch);
        let mut last: Vec<f32> = wanted.iter().flat_map(|row| &x[row * hidden..(row + 1) * hidden]).copied().collect();
        let normed = &mut normed[..last.len()];
        rms_norm(&last, &self.norm, config.rms_norm_eps, normed);
        last.copy_from_slice(normed);
        let mut logits = vec![0.0; wanted.len() * config.vocab_size];
        matmul(&last, wanted.len(), self.output.as_ref().unwrap_or(&self.embedding), None, &mut logits);
        logits
    }

    /// Per row of the batch: cosines, then sines, of its position's angles. Positions times
    /// frequencies are f32, as in transformers.
    fn cos_sin(&self, batch: &[SeqChunk<'_>], rows: usize) -> Vec<f32> {
        let mut table = Vec::with_capacity(rows * self.config.head_dim);
        for chunk in batch {
            for position in chunk.start_position..chunk.start_position + chunk.tokens.len() {
                let angles = || self.inverse_frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
                table.extend(angles().map(|angle| angle.cos() as f32));
                table.extend(angles().map(|angle| angle.sin() as f32));
            }
        }
        table
    }
}

fn query_chunks<'a>(batch: &[SeqChunk<'a>]) -> Vec<QueryChunk<'a>> {
    let mut first_row = 0;
    batch
        .iter()
        .map(|chunk| {
            let rows = chunk.tokens.len();
            first_row += rows;
            let (start_position, pages) = (chunk.start_position, ChunkPages::All(chunk.block_table));
            QueryChunk { first_row: first_row - rows, rows, start_position, pages }
        })
        .collect()
}

/// Batch rows with requested logits.
fn logit_rows(batch: &[SeqChunk<'_>]) -> Vec<usize> {
    let mut rows = Vec::new();
    let mut first = 0;
    for chunk in batch {
        let end = first + chunk.tokens.len();
        match chunk.logits {
            LogitsOf::Nothing => {}
            LogitsOf::Last => rows.push(end - 1),
            LogitsOf::All => rows.extend(first..end),
        }
        first = end;
    }
    rows
}
