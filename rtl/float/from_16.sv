// A half or a bfloat as an open number (from_f16.sv). A bfloat is the upper half of a single.
//
// Interface: combinational.
module from_16 (
    input  logic        bf16,
    input  logic [15:0] value,
    output logic [36:0] open
);
  logic [36:0] of_half, of_bfloat;
  from_f16 opening_half (
      .half(value),
      .open(of_half)
  );
  from_f32 opening_bfloat (
      .single({value, 16'd0}),
      .open  (of_bfloat)
  );
  assign open = bf16 ? of_bfloat : of_half;
endmodule
