//! One conformance test for all policies, and each against its textbook.

mod conformance;
mod harness;
mod real_trace;
mod textbook;
mod traces;
