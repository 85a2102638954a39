// An open number (from_f16.sv) rounded to a half or a bfloat (to_f16.sv, to_bf16.sv).
//
// Interface: a stalling pipeline, which moves while `en`; `bf16` stays while numbers are inside.
// Latency 1 cycle, initiation interval 1.
module to_16 (
    input  logic        clk,
    input  logic        en,
    input  logic        bf16,
    input  logic [36:0] x,
    output logic [15:0] value
);
  logic [15:0] half, bfloat;
  to_f16 to_half (
      .clk,
      .en,
      .x,
      .half
  );
  to_bf16 to_bfloat (
      .clk,
      .en,
      .x,
      .bfloat
  );
  assign value = bf16 ? bfloat : half;
endmodule
