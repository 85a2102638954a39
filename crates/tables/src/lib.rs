//! Floor 3: n-gram embedding tables in a region, one copy for all engines that map it.
//!
//! [`load`] copies a model's table into extents of the region and seals it; a sealed table never
//! changes. [`Table`] reads rows of a sealed table, [`Gatherer`] reads them with several threads,
//! now or beside a computation, and [`HotRows`] keeps the rows that are read often in private
//! memory. [`drop_table`] frees a table; readers detect it and return an error, never other bytes.
//!
//! | module | content |
//! |---|---|
//! | [`facts`] | what a table is |
//! | `record` | the object that names a table's extents, or a journal's |
//! | [`source`], [`safetensors`], [`checkpoint`] | rows of files |
//! | `load`, `registry` | from files into the region; listing, checking, dropping |
//! | `table`, `gather`, `hot` | reading |
#![forbid(unsafe_code)]

pub mod checkpoint;
mod error;
mod extents;
pub mod facts;
mod gather;
mod hot;
mod load;
mod record;
mod registry;
pub mod safetensors;
pub mod source;
mod table;

pub use error::{GatherError, TableError};
pub use facts::{Facts, SourceFile, SourceTensor, default_name};
pub use gather::{Gatherer, Output, Pending, Rows};
pub use hot::{HotCounts, HotRows};
pub use load::{LoadOptions, Outcome, Progress, load};
pub use registry::{Checked, Listed, ListedState, check, drop_table, free_unrecorded, list};
pub use source::RowSource;
pub use table::{Opening, Table};

/// Keys of objects that name tables begin with it: sealed tables, and work on tables.
pub const KEY_PREFIX: &str = cenote_pool::PLACED_KEYS;

/// A table in a mapped region.
pub type HostTable = Table<std::sync::Arc<cenote_mem::Mapped>>;
