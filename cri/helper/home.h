/* Where users of a container are at home. */
#ifndef HOME_H
#define HOME_H
#include <stddef.h>
#include <stdint.h>

void home_of(uint32_t uid, char *home, size_t size);
#endif
