// A half as an open number, the format between the arithmetic modules:
//
//   bit 36 infinite or NaN · 35 zero · 34 sign · 33..24 exponent, signed · 23..0 mantissa
//
// The value is mantissa · 2^(exponent - 23), and bit 23 is set: there are no subnormal numbers.
//
// Interface: combinational.
module from_f16 (
    input  logic [15:0] half,
    output logic [36:0] open
);
  logic [3:0] zeros;
  logic [9:0] small_mant, exponent;
  logic subnormal;

  lead_zeros #(
      .W(10)
  ) lead (
      .x(half[9:0]),
      .count(zeros)
  );
  assign subnormal = half[14:10] == 5'd0;
  assign small_mant = half[9:0] << zeros;
  assign exponent = subnormal ? -10'sd15 - {6'd0, zeros} : {5'd0, half[14:10]} - 10'd15;
  assign open = {
    half[14:10] == 5'd31,
    half[14:0] == 15'd0,
    half[15],
    exponent,
    subnormal ? {small_mant, 14'd0} : {1'b1, half[9:0], 13'd0}
  };
endmodule
