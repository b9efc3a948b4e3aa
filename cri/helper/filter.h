#ifndef BERTH_FILTER_H
#define BERTH_FILTER_H
int filter_wait(int sock);
#endif
