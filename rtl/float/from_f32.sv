// A single as an open number (from_f16.sv).
//
// Interface: combinational.
module from_f32 (
    input  logic [31:0] single,
    output logic [36:0] open
);
  logic [4:0] zeros;
  logic [22:0] small_mant;
  logic [9:0] exponent;
  logic subnormal;

  lead_zeros #(
      .W(23)
  ) lead (
      .x(single[22:0]),
      .count(zeros)
  );
  assign subnormal = single[30:23] == 8'd0;
  assign small_mant = single[22:0] << zeros;
  assign exponent = subnormal ? -10'sd127 - {5'd0, zeros} : {2'd0, single[30:23]} - 10'd127;
  assign open = {
    single[30:23] == 8'd255,
    single[30:0] == 31'd0,
    single[31],
    exponent,
    subnormal ? {small_mant, 1'b0} : {1'b1, single[22:0]}
  };
endmodule
