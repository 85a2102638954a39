//! A sequence whose past KV passes through a codec, for scores of continuations and greedy answers.
//!
//! The context is computed block by block. Each full block passes through the codec, so later tokens
//! attend to decoded values. The last token of the context is computed together with its
//! continuation, because its logits predict the first token behind. So this token and those of the
//! continuation are read raw. Without a codec the steps are the
//! same, so that differences come from the codec alone.

use crate::evaluate::{Pages, check_block_tokens, longest_context, norm_and_best, through};
use crate::{StudyError, Subject};
use cenote_base::TokenId;
use cenote_engine::LoadedModel;
use cenote_engine::kv::{KvArena, KvLayout};
use cenote_engine::llama::{LogitsOf, SeqChunk};

/// A model that reads its past through a codec.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The model.
    pub model: &'a LoadedModel,
    /// The codec; `None`: KV stays as it is.
    pub subject: Option<&'a dyn Subject>,
    /// Tokens per block, the unit of a codec.
    pub block_tokens: usize,
}

/// The treatment of the context's last block, which is not full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenBlock {
    /// It passes as a shorter page. Short contexts consist of little else.
    Passes,
    /// It stays unchanged until it is full, as in an engine with a pool.
    Stays,
}

/// A computed context.
pub struct Past<'a> {
    reader: Reader<'a>,
    layout: KvLayout,
    arena: KvArena,
    /// The context but for its last token.
    tokens: Vec<TokenId>,
    last: TokenId,
    /// Leading tokens that have passed.
    passed: usize,
    /// Blocks of each branch.
    branch_blocks: usize,
    branches: usize,
    pages: Pages,
}

/// The encoded size of pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    /// Bits after encoding.
    pub bits: u64,
    /// Values.
    pub values: u64,
}

impl Size {
    /// Adds another size.
    pub const fn add(&mut self, other: Self) {
        self.bits += other.bits;
        self.values += other.values;
    }

    /// Bits per value; `None` without values.
    #[must_use]
    pub fn bits_per_value(self) -> Option<f64> {
        (self.values > 0).then(|| self.bits as f64 / self.values as f64)
    }
}

impl<'a> Reader<'a> {
    /// Computes a context. `branches` continuations of at most `room` tokens can follow it.
    ///
    /// # Errors
    /// The context is empty, or longer than the model's together with the continuation; a codec
    /// fails; or `block_tokens` is not a positive multiple of 16.
    pub fn read(
        self,
        context: &[TokenId],
        open: OpenBlock,
        branches: usize,
        room: usize,
    ) -> Result<Past<'a>, StudyError> {
        let Some((&last, tokens)) = context.split_last() else {
            return Err(StudyError::Text("a context has no tokens".to_owned()));
        };
        let most = longest_context(self.model);
        if context.len() + room > most {
            return Err(StudyError::Model(format!(
                "a context of {} tokens and {room} more are longer than the model's context, {most}",
                context.len()
            )));
        }
        check_block_tokens(self.block_tokens)?;
        let layout = KvLayout { block_tokens: self.block_tokens, ..*self.model.layout() };
        let shared = tokens.len().div_ceil(self.block_tokens);
        // A branch begins with a copy of the block that is not full.
        let branch_blocks = (tokens.len() % self.block_tokens + 1 + room).div_ceil(self.block_tokens);
        let mut past = Past {
            reader: self,
            layout,
            arena: KvArena::new(layout, shared + branches * branch_blocks),
            tokens: tokens.to_vec(),
            last,
            passed: 0,
            branch_blocks,
            branches,
            pages: Pages::default(),
        };
        past.compute(open)?;
        Ok(past)
    }
}

impl Past<'_> {
    /// Computes the context but for its last token.
    fn compute(&mut self, open: OpenBlock) -> Result<(), StudyError> {
        let block_tokens = self.reader.block_tokens;
        let table: Vec<u32> = (0..self.tokens.len().div_ceil(block_tokens) as u32).collect();
        for &block in &table {
            let start = block as usize * block_tokens;
            let end = self.tokens.len().min(start + block_tokens);
            let chunk = SeqChunk {
                tokens: &self.tokens[start..end],
                before: &self.tokens[..start],
                start_position: start,
                block_table: &table,
                logits: LogitsOf::Nothing,
            };
            drop(self.reader.model.forward(&[chunk], &mut self.arena));
            if end - start == block_tokens || open == OpenBlock::Passes {
                self.pass(block, [start, end - start])?;
                self.passed = end;
            }
        }
        Ok(())
    }

    /// Passes the first tokens of a block through the codec: so many from a position on.
    fn pass(&mut self, block: u32, tokens: [usize; 2]) -> Result<(), StudyError> {
        match self.reader.subject {
            None => Ok(()),
            Some(subject) => through(subject, &self.layout, self.arena.pages_mut(block), tokens, &mut self.pages),
        }
    }

    /// The blocks of a branch: the context's full ones, and its own.
    fn branch(&mut self, branch: usize) -> Vec<u32> {
        assert!(branch < self.branches, "a branch more than was asked for");
        let block_tokens = self.reader.block_tokens;
        let (full, shared) = (self.tokens.len() / block_tokens, self.tokens.len().div_ceil(block_tokens));
        let own = shared + branch * self.branch_blocks;
        if shared > full {
            let open: Vec<Vec<u8>> = self.arena.pages(full as u32).into_iter().map(<[u8]>::to_vec).collect();
            let copies = self.arena.pages_mut(own as u32).into_iter().zip(open);
            copies.for_each(|(page, bytes)| page.copy_from_slice(&bytes));
        }
        (0..full).chain(own..own + self.branch_blocks).map(|block| block as u32).collect()
    }

    /// The log-likelihood of each continuation, in nats.
    ///
    /// # Errors
    /// A log-likelihood is not finite: no choice among such is right.
    ///
    /// # Panics
    /// There are more continuations than branches, one is longer than the room, or one is empty.
    pub fn score(&mut self, continuations: &[Vec<TokenId>]) -> Result<Vec<f64>, StudyError> {
        assert!(continuations.iter().all(|tokens| !tokens.is_empty()), "a continuation has tokens");
        let tables: Vec<Vec<u32>> = (0..continuations.len()).map(|branch| self.branch(branch)).collect();
        let inputs: Vec<Vec<TokenId>> =
            continuations.iter().map(|tokens| [&[self.last], &tokens[..tokens.len() - 1]].concat()).collect();
        let chunks: Vec<SeqChunk<'_>> = (inputs.iter().zip(&tables))
            .map(|(tokens, table)| SeqChunk {
                tokens,
                before: &self.tokens,
                start_position: self.tokens.len(),
                block_table: table,
                logits: LogitsOf::All,
            })
            .collect();
        let logits = self.reader.model.forward(&chunks, &mut self.arena);
        let rows: usize = inputs.iter().map(Vec::len).sum();
        let width = logits.len() / rows;
        let mut row = logits.chunks_exact(width);
        let log_likelihood = |token: TokenId, row: &[f32]| f64::from(row[token as usize]) - norm_and_best(row).0;
        let mut scores = Vec::with_capacity(continuations.len());
        for tokens in continuations {
            let rows = row.by_ref().take(tokens.len());
            let score: f64 = rows.zip(tokens).map(|(row, &token)| log_likelihood(token, row)).sum();
            scores.push(self.finite(score)?);
        }
        Ok(scores)
    }

    fn finite(&self, score: f64) -> Result<f64, StudyError> {
        let name = || self.reader.subject.map_or_else(|| "without a codec".to_owned(), Subject::name);
        if score.is_finite() { Ok(score) } else { Err(StudyError::NotFinite(name())) }
    }

    /// The likeliest tokens, one after the other. Blocks that fill pass through the codec if a token
    /// follows that reads them.
    ///
    /// # Errors
    /// A codec fails, or scores are not finite.
    ///
    /// # Panics
    /// There is no branch, or `count` is more than the room.
    pub fn greedy(&mut self, count: usize) -> Result<Vec<TokenId>, StudyError> {
        let table = self.branch(0);
        let block_tokens = self.reader.block_tokens;
        let mut tokens = self.tokens.clone();
        let mut next = self.last;
        let mut answer = Vec::with_capacity(count);
        for _ in 0..count {
            let position = tokens.len();
            let chunk = SeqChunk {
                tokens: &[next],
                before: &tokens,
                start_position: position,
                block_table: &table,
                logits: LogitsOf::Last,
            };
            let logits = self.reader.model.forward(&[chunk], &mut self.arena);
            tokens.push(next);
            let (norm, best) = norm_and_best(&logits);
            self.finite(norm)?;
            next = best as TokenId;
            answer.push(next);
            if answer.len() == count {
                break;
            }
            let block = position / block_tokens;
            // A block with tokens that passed already stays: they would be rounded twice.
            if tokens.len().is_multiple_of(block_tokens) && self.passed <= block * block_tokens {
                self.pass(table[block], [block * block_tokens, block_tokens])?;
            }
        }
        Ok(answer)
    }

    /// The size of all pages that passed so far.
    #[must_use]
    pub const fn size(&self) -> Size {
        Size { bits: self.pages.bits, values: self.pages.values }
    }
}
