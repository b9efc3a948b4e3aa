/* /dev/null for the processes of containers. See null.c. */
#ifndef BERTH_NULL_H
#define BERTH_NULL_H
int is_null(int fd);
int null_fresh(void);
int null_end(int write);
int null_take(int as);
#endif
