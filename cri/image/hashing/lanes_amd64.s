#include "textflag.h"

// Eight SHA-256 at a time, one in each 32-bit lane of the registers.
//
//	Y0-Y7    the states: a to h of all eight
//	Y16-Y31  the last 16 words of the message schedules
//	Y8-Y15   what is needed in between

// rotated sum: out = in>>>x ^ in>>>y ^ in>>>z
#define SUM(x, y, z, in, out) \
	VPRORD $x, in, out;            \
	VPRORD $y, in, Y11;            \
	VPRORD $z, in, Y12;            \
	VPTERNLOGD $0x96, Y12, Y11, out

// shifted sum of the schedule: out = in>>>x ^ in>>>y ^ in>>z
#define SIGMA(x, y, z, in, out) \
	VPRORD $x, in, out;            \
	VPRORD $y, in, Y11;            \
	VPSRLD $z, in, Y12;            \
	VPTERNLOGD $0x96, Y12, Y11, out

// One round; the new a is in h, the new e in d.
#define ROUND(i, w, a, b, c, d, e, f, g, h) \
	VPADDD.BCST ((i)*4)(DX), w, Y8;   \
	VPADDD h, Y8, Y8;               \
	VMOVDQA32 e, Y9;                \
	VPTERNLOGD $0xca, g, f, Y9;     \
	VPADDD Y9, Y8, Y8;              \
	SUM(6, 11, 25, e, Y10);         \
	VPADDD Y10, Y8, Y8;             \
	VPADDD Y8, d, d;                \
	SUM(2, 13, 22, a, Y10);         \
	VMOVDQA32 a, Y9;                \
	VPTERNLOGD $0xe8, c, b, Y9;     \
	VPADDD Y9, Y10, Y10;            \
	VPADDD Y8, Y10, h

// The next word of the schedule, in the place of the one of 16 rounds ago.
#define NEXT(w0, w1, w9, w14) \
	SIGMA(7, 18, 3, w1, Y8);        \
	SIGMA(17, 19, 10, w14, Y9);     \
	VPADDD Y8, w0, w0;              \
	VPADDD w9, Y9, Y9;              \
	VPADDD Y9, w0, w0

#define ROUNDS16(i) \
	ROUND(i+0, Y16, Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7);  \
	ROUND(i+1, Y17, Y7, Y0, Y1, Y2, Y3, Y4, Y5, Y6);  \
	ROUND(i+2, Y18, Y6, Y7, Y0, Y1, Y2, Y3, Y4, Y5);  \
	ROUND(i+3, Y19, Y5, Y6, Y7, Y0, Y1, Y2, Y3, Y4);  \
	ROUND(i+4, Y20, Y4, Y5, Y6, Y7, Y0, Y1, Y2, Y3);  \
	ROUND(i+5, Y21, Y3, Y4, Y5, Y6, Y7, Y0, Y1, Y2);  \
	ROUND(i+6, Y22, Y2, Y3, Y4, Y5, Y6, Y7, Y0, Y1);  \
	ROUND(i+7, Y23, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y0);  \
	ROUND(i+8, Y24, Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7);  \
	ROUND(i+9, Y25, Y7, Y0, Y1, Y2, Y3, Y4, Y5, Y6);  \
	ROUND(i+10, Y26, Y6, Y7, Y0, Y1, Y2, Y3, Y4, Y5); \
	ROUND(i+11, Y27, Y5, Y6, Y7, Y0, Y1, Y2, Y3, Y4); \
	ROUND(i+12, Y28, Y4, Y5, Y6, Y7, Y0, Y1, Y2, Y3); \
	ROUND(i+13, Y29, Y3, Y4, Y5, Y6, Y7, Y0, Y1, Y2); \
	ROUND(i+14, Y30, Y2, Y3, Y4, Y5, Y6, Y7, Y0, Y1); \
	ROUND(i+15, Y31, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y0)

#define NEXT16 \
	NEXT(Y16, Y17, Y25, Y30); \
	NEXT(Y17, Y18, Y26, Y31); \
	NEXT(Y18, Y19, Y27, Y16); \
	NEXT(Y19, Y20, Y28, Y17); \
	NEXT(Y20, Y21, Y29, Y18); \
	NEXT(Y21, Y22, Y30, Y19); \
	NEXT(Y22, Y23, Y31, Y20); \
	NEXT(Y23, Y24, Y16, Y21); \
	NEXT(Y24, Y25, Y17, Y22); \
	NEXT(Y25, Y26, Y18, Y23); \
	NEXT(Y26, Y27, Y19, Y24); \
	NEXT(Y27, Y28, Y20, Y25); \
	NEXT(Y28, Y29, Y21, Y26); \
	NEXT(Y29, Y30, Y22, Y27); \
	NEXT(Y30, Y31, Y23, Y28); \
	NEXT(Y31, Y16, Y24, Y29)

#define ROW(lane, at, r) \
	MOVQ (lane*8)(SI), AX;         \
	VMOVDQU32 at(AX)(BX*1), r

// Eight words of the eight messages, from a row for each message to a register for each word, with the bytes turned round.
#define WORDS(at, r0, r1, r2, r3, r4, r5, r6, r7) \
	ROW(0, at, r0);                \
	ROW(1, at, r1);                \
	ROW(2, at, r2);                \
	ROW(3, at, r3);                \
	ROW(4, at, r4);                \
	ROW(5, at, r5);                \
	ROW(6, at, r6);                \
	ROW(7, at, r7);                \
	VPUNPCKLDQ r1, r0, Y8;         \
	VPUNPCKHDQ r1, r0, Y9;         \
	VPUNPCKLDQ r3, r2, Y10;        \
	VPUNPCKHDQ r3, r2, Y11;        \
	VPUNPCKLDQ r5, r4, Y12;        \
	VPUNPCKHDQ r5, r4, Y13;        \
	VPUNPCKLDQ r7, r6, Y14;        \
	VPUNPCKHDQ r7, r6, Y15;        \
	VPUNPCKLQDQ Y10, Y8, r0;       \
	VPUNPCKHQDQ Y10, Y8, r1;       \
	VPUNPCKLQDQ Y11, Y9, r2;       \
	VPUNPCKHQDQ Y11, Y9, r3;       \
	VPUNPCKLQDQ Y14, Y12, r4;      \
	VPUNPCKHQDQ Y14, Y12, r5;      \
	VPUNPCKLQDQ Y15, Y13, r6;      \
	VPUNPCKHQDQ Y15, Y13, r7;      \
	VSHUFI32X4 $0, r4, r0, Y8;     \
	VSHUFI32X4 $0, r5, r1, Y9;     \
	VSHUFI32X4 $0, r6, r2, Y10;    \
	VSHUFI32X4 $0, r7, r3, Y11;    \
	VSHUFI32X4 $3, r4, r0, Y12;    \
	VSHUFI32X4 $3, r5, r1, Y13;    \
	VSHUFI32X4 $3, r6, r2, Y14;    \
	VSHUFI32X4 $3, r7, r3, Y15;    \
	VPSHUFB ·swap(SB), Y8, r0;     \
	VPSHUFB ·swap(SB), Y9, r1;     \
	VPSHUFB ·swap(SB), Y10, r2;    \
	VPSHUFB ·swap(SB), Y11, r3;    \
	VPSHUFB ·swap(SB), Y12, r4;    \
	VPSHUFB ·swap(SB), Y13, r5;    \
	VPSHUFB ·swap(SB), Y14, r6;    \
	VPSHUFB ·swap(SB), Y15, r7

#define ADD(i, r) \
	VPADDD ((i)*32)(DI), r, r;       \
	VMOVDQU32 r, (i*32)(DI)

// func blocks8(state *[8][8]uint32, data *[8]*byte, k *[64]uint32, n int)
TEXT ·blocks8(SB), NOSPLIT, $0-32
	MOVQ state+0(FP), DI
	MOVQ data+8(FP), SI
	MOVQ k+16(FP), DX
	MOVQ n+24(FP), CX
	XORQ BX, BX
	VMOVDQU32 0(DI), Y0
	VMOVDQU32 32(DI), Y1
	VMOVDQU32 64(DI), Y2
	VMOVDQU32 96(DI), Y3
	VMOVDQU32 128(DI), Y4
	VMOVDQU32 160(DI), Y5
	VMOVDQU32 192(DI), Y6
	VMOVDQU32 224(DI), Y7

loop:
	WORDS(0, Y16, Y17, Y18, Y19, Y20, Y21, Y22, Y23)
	WORDS(32, Y24, Y25, Y26, Y27, Y28, Y29, Y30, Y31)
	ROUNDS16(0)
	NEXT16
	ROUNDS16(16)
	NEXT16
	ROUNDS16(32)
	NEXT16
	ROUNDS16(48)
	ADD(0, Y0)
	ADD(1, Y1)
	ADD(2, Y2)
	ADD(3, Y3)
	ADD(4, Y4)
	ADD(5, Y5)
	ADD(6, Y6)
	ADD(7, Y7)
	ADDQ $64, BX
	DECQ CX
	JNZ  loop
	VZEROUPPER
	RET

DATA ·swap+0(SB)/8, $0x0405060700010203
DATA ·swap+8(SB)/8, $0x0c0d0e0f08090a0b
DATA ·swap+16(SB)/8, $0x0405060700010203
DATA ·swap+24(SB)/8, $0x0c0d0e0f08090a0b
GLOBL ·swap(SB), RODATA|NOPTR, $32
