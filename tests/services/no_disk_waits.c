/* Preloaded: lets fsync and fdatasync begin to write an open file out, and wait for nothing. From then on a
 * write through a mapping shows in the file's times, as after a real one. */
#define _GNU_SOURCE
#include <fcntl.h>

int fsync(int file)
{
    if (fcntl(file, F_GETFD) < 0)
        return -1;
    sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
    return 0;
}

int fdatasync(int file) { return fsync(file); }
