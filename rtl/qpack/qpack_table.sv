// QPack's statistics of the channels of one side of a layer, two channels a word: means, inverse
// steps and steps, as singles.
//
// Interface: `write` stores a word; two reads, for the encoder and the decoder, are combinational.
// The table has PAIRS words; places beyond it do not exist, and read as any word.
module qpack_table #(
    parameter int PAIRS = 512
) (
    input  logic         clk,
    input  logic         write,
    input  logic [15:0]  at,
    input  logic [191:0] word,
    input  logic [15:0]  a_at,
    output logic [191:0] a_word,
    input  logic [15:0]  b_at,
    output logic [191:0] b_word
);
  localparam int A = $clog2(PAIRS);
  logic [191:0] words[0:PAIRS-1];

  assign a_word = words[a_at[A-1:0]];
  assign b_word = words[b_at[A-1:0]];
  always_ff @(posedge clk) if (write) words[at[A-1:0]] <= word;
  logic unused;
  assign unused = ^{at[15:A], a_at[15:A], b_at[15:A]};
endmodule
