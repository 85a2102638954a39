// A signed integer of nine bits as an open number (from_f16.sv); exact.
//
// Interface: combinational.
module from_int (
    input  logic [8:0]  value,
    output logic [36:0] open
);
  logic [8:0] magnitude, mant;
  logic [3:0] zeros;

  assign magnitude = value[8] ? -value : value;
  lead_zeros #(
      .W(9)
  ) lead (
      .x(magnitude),
      .count(zeros)
  );
  assign mant = magnitude << zeros;
  assign open = {1'b0, value == 9'd0, value[8], 10'd8 - {6'd0, zeros}, mant, 15'd0};
endmodule
