/*
 * Whether the sanitizers are in this build, and where they tell.
 */
#ifndef BERTH_SANITIZER_H
#define BERTH_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#if SANITIZED
void sanitizer_report_to(int dir);
#else
static inline void sanitizer_report_to(int dir)
{
	(void)dir;
}
#endif
#endif
