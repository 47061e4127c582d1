#include "textflag.h"

// func readAVX512(p *byte, n int)
// n is a positive multiple of 256.
TEXT ·readAVX512(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	ADDQ SI, CX

loop:
	VPORQ 0(SI), Z0, Z0
	VPORQ 64(SI), Z1, Z1
	VPORQ 128(SI), Z2, Z2
	VPORQ 192(SI), Z3, Z3
	ADDQ  $256, SI
	CMPQ  SI, CX
	JLT   loop
	VZEROUPPER
	RET

// func readAVX2(p *byte, n int)
// n is a positive multiple of 256.
TEXT ·readAVX2(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	ADDQ SI, CX

loop:
	VPOR 0(SI), Y0, Y0
	VPOR 32(SI), Y1, Y1
	VPOR 64(SI), Y2, Y2
	VPOR 96(SI), Y3, Y3
	VPOR 128(SI), Y0, Y0
	VPOR 160(SI), Y1, Y1
	VPOR 192(SI), Y2, Y2
	VPOR 224(SI), Y3, Y3
	ADDQ $256, SI
	CMPQ SI, CX
	JLT  loop
	VZEROUPPER
	RET
